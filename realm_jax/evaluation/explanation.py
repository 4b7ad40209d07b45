"""An explanation as plain data, for JSON and for a page, and as text."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from realm_jax.console import columns, figures_table
from realm_jax.evaluation.run import QUESTION, SENTENCE, Block, Kind

_WIDTH = 80
_INDENT = "   "
_LEGENDS = {
  SENTENCE: (
    "p(z|x) is over the candidates; p(y|z,x) is the product over the "
    "wordpieces of y; share is the candidate's part of p(y|x) = Σ p(z|x) "
    "p(y|z,x); utility is log p(y|z,x) − log p(y|null,x); r(z) is the gradient "
    "of log p(y|x) by f(x,z): the documents that it would reward."
  ),
  QUESTION: (
    "All probabilities are of one softmax over the spans of all blocks that "
    "were read: p(z|x) is the sum over the spans of a block, p(y|z,x) the part "
    "of it that gives y, and share the block's part of p(y|x). The column "
    "retriever is the softmax of f(x,z) over the blocks that were retrieved."
  ),
}


class ExplanationError(ValueError):
  """A text that this run cannot explain, or an answer that does not fit it."""


@dataclasses.dataclass(frozen=True)
class Filling:
  """A filling of the masks, or an answer to a question.

  Attributes:
    text: Words.
    probability: p(y|x), or that given one candidate.
    without_retrieval: p(y|null,x) of a filling.
    start, limit: Characters of the block's text of an answer in it.
  """

  text: str
  probability: float
  without_retrieval: float | None = None
  start: int | None = None
  limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One candidate z, and its part in p(y|x), y being the answer explained.

  Attributes:
    block: The block, with its score and the retriever's probability.
    probability: p(z|x); of a question, by retriever and reader together.
    log_likelihood: log p(y|z,x); None where the block does not contain y.
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    best: What the reader finds most likely here; None in a block without text.
    contains_text: Whether the block contains the text word for word, so that
      its retrieval is trivial.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    utility: log p(y|z,x) − log p(y|null,x); None of a question, for which
      there is no null block.
    reward: r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), the derivative of log p(y|x)
      by f(x,z); None of a question.
  """

  block: Block
  probability: float
  log_likelihood: float | None
  share: float | None
  best: Filling | None
  contains_text: bool
  token_log_likelihoods: Sequence[float] = ()
  utility: float | None = None
  reward: float | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
  """Why a run fills in, or answers, what it does.

  Attributes:
    text: Sentence or question, as it was given.
    kind: Which of the two it is.
    model_dir: Directory of the run.
    checkpoint: Step of the checkpoint.
    generation: Step of the generation that was searched.
    read: The query in wordpieces, as the model read it.
    answer: y, the answer that the figures are of; empty if there is none.
    answer_is_given: Whether the answer was given, or is the best one.
    wordpieces: Wordpieces of the answer.
    log_likelihood: log p(y|x); None if no candidate contains the answer.
    candidates: The null block of a masked sentence, then blocks by score.
    fillings: The best fillings or answers.
    notes: What a reader of the figures should know.
    log_likelihood_null: log p(y|null,x); None of a question.
    utility: log p(y|x) − log p(y|null,x); None of a question.
  """

  text: str
  kind: Kind
  model_dir: str
  checkpoint: int
  generation: int
  read: str
  answer: str
  answer_is_given: bool
  wordpieces: Sequence[str]
  log_likelihood: float | None
  candidates: Sequence[Candidate]
  fillings: Sequence[Filling]
  notes: list[str]
  log_likelihood_null: float | None = None
  utility: float | None = None

  @property
  def probability(self) -> float:
    """p(y|x)."""
    return probability(self.log_likelihood)

  def __repr__(self) -> str:
    return f"<{self.text!r}: {self.answer!r} ({self.probability:.3g})>"

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


def probability(log_probability: float | None) -> float:
  """Returns a probability from its logarithm; None stands for −∞."""
  return 0.0 if log_probability is None else math.exp(log_probability)


def explanation_text(explained: Explanation, *, num_texts: int) -> str:
  """Returns tables for a terminal, and the texts of the first blocks."""
  parts = [
    _head(explained),
    _candidates_table(explained),
    textwrap.fill(_LEGENDS[explained.kind], _WIDTH, break_on_hyphens=False),
    _fillings_table(explained),
  ]
  blocks = [one.block for one in explained.candidates if one.block.id]
  for block in blocks[:num_texts]:
    text = textwrap.indent(textwrap.fill(block.text, _WIDTH - 3), _INDENT)
    parts.append(f"{block.title}  [{block.id}]\n{text}")
  return "\n\n".join(parts) + "\n"


def _head(explained: Explanation) -> str:
  lines = [explained.text]
  if explained.answer:
    how = "given" if explained.answer_is_given else "the best"
    pieces = " ".join(explained.wordpieces)
    lines.append(f"y = {explained.answer!r} ({how}; wordpieces: {pieces})")
  figures = {"p(y|x)": f"{explained.probability:.4g}"}
  if explained.utility is not None:
    null = probability(explained.log_likelihood_null)
    figures["p(y|x) by the null block"] = f"{null:.4g}"
    figures["utility of retrieval"] = f"{explained.utility:+.4f}"
  made_by = f"{explained.checkpoint}, {explained.generation}"
  figures["checkpoint, generation"] = made_by
  lines.append(figures_table(figures))
  lines += [textwrap.fill(f"Note: {n}.", _WIDTH) for n in explained.notes]
  return "\n".join(lines)


def _candidates_table(explained: Explanation) -> str:
  is_question = explained.kind == QUESTION
  own = ["retriever"] if is_question else ["utility", "r(z)"]
  heads = ["candidate", "p(z|x)", "p(y|z,x)", "share", *own]
  rows: list[list[object]] = [[*heads, "alone it says", "with p"]]
  for rank, one in enumerate(explained.candidates, start=int(is_question)):
    block, best = one.block, one.best
    mark = " *" if one.contains_text else ""
    figures: list[object] = [block.probability]
    if not is_question:
      figures = [f"{one.utility:+.4f}", f"{one.reward:+.4f}"]
    rows.append(
      [
        f"{rank}. {block.title:.20} [{block.id}]{mark}"
        if block.id
        else "(null block)",
        one.probability,
        f"{probability(one.log_likelihood):.4g}",
        "–" if one.share is None else one.share,
        *figures,
        *([f"{best.text:.18}", f"{best.probability:.3g}"] if best else "  "),
      ]
    )
  return columns(rows)


def _fillings_table(explained: Explanation) -> str:
  rows = [["best fillings", "p(y|x)", "by the null block"]]
  if explained.kind == QUESTION:
    rows = [["best answers", "p(y|x)"]]
  for one in explained.fillings:
    numbers = [one.probability, one.without_retrieval][: len(rows[0]) - 1]
    rows.append([f"{one.text:.40}", *(f"{n:.4g}" for n in numbers)])
  return columns(rows)
