"""Answers questions: `python -m realm_jax.ask --model_dir=… "who wrote …?"`.

The configuration is the run's, over gin/runs/ask.gin, or comes from gin files.
The command prints the best answers, each with the block that contains it and
the block's probability p(z|x). Without a question on the command line, it reads
questions from the terminal or the standard input, and prints an error for each
one that it cannot answer. The model is loaded once. If several processes run,
as on a TPU slice, process 0 answers on its own devices; the others load nothing
and end with it.
"""

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags, logging

from realm_jax.configuration import command_line
from realm_jax.console import for_each_line, harmless
from realm_jax.storage.json_files import read_object

if TYPE_CHECKING:
  from realm_jax.evaluation.config import RunConfig
  from realm_jax.evaluation.result import Result

_NUM_ANSWERS = flags.DEFINE_integer(
  "num_answers", 3, "Number of answers to print.", lower_bound=1
)

_WHERE = flags.DEFINE_string(
  "where",
  None,
  "Filter of the blocks to answer from, an object of JSON such as "
  '{"language": "de"}: see realm_jax/corpus/filters.py.',
)

# Placeholders that mark the answer until lines are wrapped, because wrapping
# would count escape sequences. `harmless` removes them from texts.
_OPEN, _CLOSE = "\x01", "\x02"
_ON_TERMINAL = ("\x1b[1;32m", "\x1b[0m")
_ELSEWHERE = ("«", "»")
_WIDTH = 80


def main(argv: Sequence[str]) -> None:
  """Loads the run and answers questions."""
  config = command_line.configured(
    "realm_jax.evaluation.config:RunConfig", recipe="gin/runs/ask.gin"
  )
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  Agreement("ask").on_process_0("answers", lambda: _answer(config(), argv[1:]))


def _answer(config: "RunConfig", words: Sequence[str]) -> None:
  """Answers the question of the command line, or all of the input."""
  from realm_jax.evaluation.ask import ask, require_answering
  from realm_jax.evaluation.run import TrainedRun

  run = TrainedRun.load(config)
  if _WHERE.value is not None:
    run = run.filtered(read_object(_WHERE.value.encode()))
  # Reports missing parts before it asks for a question.
  require_answering(run)

  def answer(question: str) -> None:
    (result,) = ask(run, [question])
    for note in run.vocabulary.notes(question):
      print(harmless(note))
    print(_shown(result))

  if words:
    answer(" ".join(words))
  else:
    for_each_line("question", answer)


def _shown(result: "Result") -> str:
  """Returns the best answers of a question, each marked in its block."""
  if not result.answers:
    return "no answer: the blocks that were read have no words"
  parts, indent = [], "   "
  marks = _ON_TERMINAL if sys.stdout.isatty() else _ELSEWHERE
  for rank, answer in enumerate(result.answers[: _NUM_ANSWERS.value], 1):
    hit, *texts = result.passage(answer)
    before, marked, after = map(harmless, texts)
    if marked:
      marked = f"{_OPEN}{marked}{_CLOSE}"
    lines = textwrap.fill(
      f"{before}{marked}{after}",
      _WIDTH,
      initial_indent=indent,
      subsequent_indent=indent,
    )
    lines = lines.replace(_OPEN, marks[0]).replace(_CLOSE, marks[1])
    parts.append(
      f"{rank}. {harmless(answer.text)}  (probability "
      f"{answer.probability:.3f})\n"
      f"{indent}{harmless(hit.block.title)}  [block {harmless(hit.block.id)}, "
      f"rank {1 + result.hits.index(hit)}, p(z|x) {hit.probability:.3f}]\n"
      f"{lines}"
    )
  return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
  command_line.run(main, takes_texts=True, on_devices=True)
