"""Answers questions: `python -m realm_jax.ask --model_dir=… "who wrote …?"`.

The configuration is the one that the run keeps, over gin/runs/ask.gin, or that
of gin files. The command prints the best answers, each with the block that
contains it and that block's probability p(z|x). Without a question on the
command line it reads questions from the terminal or from its standard input.
The model is loaded once. Of several processes, such as those of a TPU slice,
process 0 answers on its own devices, and the others load nothing and end with
it.
"""

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags, logging

from realm_jax.configuration import command_line
from realm_jax.console import prompted_lines

if TYPE_CHECKING:
  from realm_jax.evaluation.answering import Answer, Answered, Answerer

_NUM_ANSWERS = flags.DEFINE_integer(
  "num_answers", 3, "Number of answers to print.", lower_bound=1
)

# Private-use characters that mark the answer while lines are wrapped, since
# wrapping would count the characters of an escape sequence.
_OPEN, _CLOSE = "\ue000", "\ue001"
_ON_TERMINAL = ("\x1b[1;32m", "\x1b[0m")
_ELSEWHERE = ("«", "»")
_WIDTH = 80
_RECIPE = "gin/runs/ask.gin"


def main(argv: Sequence[str]) -> None:
  """Calls `evaluation.answering.load_answerer` and answers questions."""
  command_line.require_run(_RECIPE)
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  Agreement("ask").on_process_0("answers", lambda: _answer(argv[1:]))


def _answer(words: Sequence[str]) -> None:
  """Answers the question of the command line, or those of the input."""
  from realm_jax.evaluation.answering import load_answerer

  answerer = command_line.call(load_answerer, recipe=_RECIPE)
  marks = _ON_TERMINAL if sys.stdout.isatty() else _ELSEWHERE
  questions = [" ".join(words)] if words else prompted_lines("question")
  for question in questions:
    answered = answerer.ask(question)
    print(
      shown(answerer, answered, num_answers=_NUM_ANSWERS.value, marks=marks)
    )


def shown(
  answerer: "Answerer",
  answered: "Answered",
  *,
  num_answers: int,
  marks: tuple[str, str],
) -> str:
  """Returns the best answers of a question with their evidence, as text.

  Each answer stands between the two `marks` in its block.
  """
  if not answered.answers:
    return "no answer: the blocks that were read have no words"
  parts = [
    f"{rank}. {answer.text}  (probability {answer.probability:.3f})\n"
    + _evidence(answerer, answered, answer, marks)
    for rank, answer in enumerate(answered.answers[:num_answers], start=1)
  ]
  return "\n\n".join(parts) + "\n"


def _evidence(
  answerer: "Answerer",
  answered: "Answered",
  answer: "Answer",
  marks: tuple[str, str],
) -> str:
  block, ranking = answerer.corpus.block(answer.row), answered.ranking
  index = ranking.rows.tolist().index(answer.row)
  text = highlighted(block.body, answer.start_byte, answer.limit_byte)
  indent = "   "
  lines = textwrap.fill(
    text, _WIDTH, initial_indent=indent, subsequent_indent=indent
  )
  lines = lines.replace(_OPEN, marks[0]).replace(_CLOSE, marks[1])
  return (
    f"{indent}{block.title}  [block {block.name}, "
    f"rank {index + 1}, p(z|x) {ranking.probabilities[index]:.3f}]\n{lines}"
  )


def highlighted(body: str, start_byte: int, limit_byte: int) -> str:
  """Returns a text with marks around bytes `[start_byte, limit_byte)`."""
  text = body.encode()
  parts = text[:start_byte], text[start_byte:limit_byte], text[limit_byte:]
  before, answer, after = (part.decode() for part in parts)
  return f"{before}{_OPEN}{answer}{_CLOSE}{after}"


if __name__ == "__main__":
  command_line.run_on_devices(main, takes_texts=True)
