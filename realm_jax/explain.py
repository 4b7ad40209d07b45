"""Explains what a run fills in: `python -m realm_jax.explain "… [MASK] …"`.

    python -m realm_jax.explain --model_dir=… "… was born in [MASK]."
    python -m realm_jax.explain --model_dir=… --answer=Paris "… in [MASK]."
    python -m realm_jax.explain --model_dir=… --block_use

For a sentence it prints the paper's Table 3: the candidates, their shares of
p(y|x), and their rewards r(z) by a gradient step, with p(y|null,x) and the best
fillings. For a question it prints the blocks from which the answer comes.
Without a text, it reads texts from the terminal or the standard input, and
prints an error for each one that it cannot explain. docs/concepts.md explains
the symbols.

The configuration is the run's, over gin/runs/explain.gin, or comes from gin
files. If there are several processes, process 0 explains on its own devices.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from realm_jax.configuration import command_line
from realm_jax.console import (
  columns,
  for_each_line,
  harmless,
  json_flag,
  name_value_table,
)
from realm_jax.errors import RealmError

if TYPE_CHECKING:
  from realm_jax.evaluation.result import Result

_ANSWER = flags.DEFINE_string(
  "answer", None, "Answer to explain; it replaces the one [MASK]."
)
_BLOCK_USE = flags.DEFINE_bool(
  "block_use",
  False,
  "Show the block that helps most with each of some training sentences.",
)
_NUM_TEXTS = flags.DEFINE_integer(
  "num_texts", 3, "Number of candidates whose text is printed.", lower_bound=0
)
_write_json = json_flag("File to which the same is written as JSON.")

_WIDTH = 80
_INDENT = "   "
_LEGENDS = {
  "masked sentence": (
    "p(z|x) is over the candidates; p(y|z,x) is the product over the "
    "wordpieces of y; share is the candidate's part of p(y|x) = Σ p(z|x) "
    "p(y|z,x); utility is log p(y|z,x) − log p(y|null,x); r(z) is the gradient "
    "of log p(y|x) by f(x,z): the documents that it would reward."
  ),
  "question": (
    "All probabilities are of one softmax over the spans of all blocks that "
    "were read: p(z|x) is the sum over the spans of a block, p(y|z,x) the part "
    "of it that gives y, and share the block's part of p(y|x). The column "
    "retriever is the softmax of f(x,z) over the blocks that were retrieved."
  ),
}


def main(argv: Sequence[str]) -> None:
  """Explains the texts of the command line or of the input."""
  text = " ".join(argv[1:])
  if _BLOCK_USE.value and (text or _ANSWER.value is not None):
    raise RealmError("--block_use is for no sentence, and no --answer")
  if _ANSWER.value is not None and not text:
    raise RealmError("--answer is for one sentence; give it as well")
  function = "explain:block_use" if _BLOCK_USE.value else "config:RunConfig"
  configured = command_line.configured(
    f"realm_jax.evaluation.{function}", recipe="gin/runs/explain.gin"
  )
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  Agreement("explain").on_process_0(
    "explanations", lambda: _explain(configured, text)
  )


def _explain(configured: Callable[[], Any], text: str) -> None:
  from realm_jax.evaluation.explain import explain
  from realm_jax.evaluation.run import TrainedRun

  if _BLOCK_USE.value:
    use = configured()
    _write_json({"sentences": use})
    rows = [
      [v if isinstance(v, float) else f"{v:.40}" for v in one.values()]
      for one in use
    ]
    print(harmless(columns([[*use[0]], *rows])))
    return
  run, explained = TrainedRun.load(configured()), []
  # Reports missing parts before it asks for a text.
  run.require_reader()

  def answer(one: str) -> None:
    try:
      result = explain(run, one, _ANSWER.value)
    except RealmError as error:
      explained.append({"text": one, "error": str(error)})
      raise
    print(harmless(shown(result, num_texts=_NUM_TEXTS.value)))
    explained.append(result.json())

  if text:
    answer(text)
  else:
    for_each_line("sentence with [MASK], or question", answer)
  _write_json({"explanations": explained})


def shown(explained: "Result", *, num_texts: int) -> str:
  """Returns tables for a terminal, and the texts of the first blocks."""
  parts = [
    _head(explained),
    _candidates_table(explained),
    textwrap.fill(_LEGENDS[explained.kind], _WIDTH, break_on_hyphens=False),
    _fillings_table(explained),
  ]
  blocks = [hit.block for hit in explained.hits if hit.block.id]
  for block in blocks[:num_texts]:
    text = textwrap.indent(textwrap.fill(block.text, _WIDTH - 3), _INDENT)
    parts.append(f"{block.title}  [{block.id}]\n{text}")
  return "\n\n".join(parts) + "\n"


def _head(explained: "Result") -> str:
  lines = [explained.text]
  if explained.answer:
    how = "given" if explained.answer_is_given else "the best"
    pieces = " ".join(explained.wordpieces)
    lines.append(f"y = {explained.answer!r} ({how}; wordpieces: {pieces})")
  values = {"p(y|x)": f"{explained.probability:.4g}"}
  if explained.utility is not None:
    null = explained.hits[0]
    values["p(y|x) by the null block"] = _figure(null.likelihood, ".4g")
    values["utility of retrieval"] = f"{explained.utility:+.4f}"
  made_by = "{checkpoint}, {snapshot}".format_map(explained.source)
  values["checkpoint, snapshot"] = made_by
  lines.append(name_value_table(values))
  lines += [textwrap.fill(f"Note: {n}.", _WIDTH) for n in explained.notes]
  return "\n".join(lines)


def _candidates_table(explained: "Result") -> str:
  is_question = explained.kind == "question"
  of_kind = ["retriever"] if is_question else ["utility", "r(z)"]
  heads = ["candidate", "p(z|x)", "p(y|z,x)", "share", *of_kind]
  rows = [[*heads, "alone it says", "with p"]]
  for rank, hit in enumerate(explained.hits, start=int(is_question)):
    block, best = hit.block, hit.best
    mark = " *" if hit.contains_text else ""
    values = [_figure(hit.probability)]
    if not is_question:
      values = [_figure(hit.utility, "+.4f"), _figure(hit.reward, "+.4f")]
    rows.append(
      [
        f"{rank}. {block.title:.20} [{block.id}]{mark}"
        if block.id
        else "(null block)",
        _figure(hit.weight),
        _figure(hit.likelihood, ".4g"),
        _figure(hit.share),
        *values,
        *([f"{best.text:.18}", f"{best.probability:.3g}"] if best else "  "),
      ]
    )
  return columns(rows)


def _figure(value: float | None, form: str = ".4f") -> str:
  return "–" if value is None else format(value, form)


def _fillings_table(explained: "Result") -> str:
  rows = [["best fillings", "p(y|x)", "by the null block"]]
  if explained.kind == "question":
    rows = [["best answers", "p(y|x)"]]
  for best in explained.answers:
    numbers = [best.probability, best.without_retrieval][: len(rows[0]) - 1]
    rows.append([f"{best.text:.40}", *(_figure(n, ".4g") for n in numbers)])
  return columns(rows)


if __name__ == "__main__":
  command_line.run(main, takes_texts=True, on_devices=True)
