"""An explanation as plain data, for JSON and for a page, and as text."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal

from realm_jax.console import columns, figures_table
from realm_jax.evaluation.run import Block

Kind = Literal["masked sentence", "question"]
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


class ExplanationError(ValueError):
  """A text that this run cannot explain, or an answer that does not fit it."""


@dataclasses.dataclass(frozen=True)
class Span:
  """What the reader finds most likely in one candidate.

  Attributes:
    text: Filling, or answer.
    probability: Its probability given this candidate.
    start, limit: Characters of the block's text of an answer; None of a
      filling, which need not be in the block.
  """

  text: str
  probability: float
  start: int | None = None
  limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One candidate z, and its part in p(y|x), y being the answer explained.

  Attributes:
    block: The block, with its score and the retriever's probability.
    probability: p(z|x); of a question, by retriever and reader together.
    log_likelihood: log p(y|z,x); None where the block does not contain y.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    utility: log p(y|z,x) − log p(y|null,x); None of a question, for which
      there is no null block.
    reward: r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), the derivative of log p(y|x)
      by f(x,z); None of a question.
    best: What the reader finds most likely here; None in a block without text.
    contains_text: Whether the block contains the text word for word, so that
      its retrieval is trivial.
  """

  block: Block
  probability: float
  log_likelihood: float | None
  token_log_likelihoods: Sequence[float]
  share: float | None
  utility: float | None
  reward: float | None
  best: Span | None
  contains_text: bool


@dataclasses.dataclass(frozen=True)
class Filling:
  """A filling of the masks, or an answer to a question.

  Attributes:
    text: Words.
    probability: p(y|x).
    without_retrieval: p(y|null,x); None of an answer to a question.
  """

  text: str
  probability: float
  without_retrieval: float | None = None


@dataclasses.dataclass(frozen=True)
class Unaided:
  """The same sentence filled in by a masked language model alone.

  Attributes:
    model_dir: Directory of its run.
    checkpoint: Step of its checkpoint.
    wordpieces: Wordpieces of a given answer in its own vocabulary.
    log_likelihood: log p(y|x) of a given answer; None if none was given.
    fillings: Its best fillings.
  """

  model_dir: str
  checkpoint: int
  wordpieces: Sequence[str]
  log_likelihood: float | None
  fillings: Sequence[Filling]


@dataclasses.dataclass(frozen=True)
class Explanation:
  """Why a run fills in, or answers, what it does.

  Attributes:
    text: Sentence or question, as it was given.
    kind: Which of the two it is.
    read: The query in wordpieces, as the model read it.
    answer: y, the answer that the figures are of; empty if there is none.
    answer_is_given: Whether the answer was given, or is the best one.
    wordpieces: Wordpieces of the answer.
    log_likelihood: log p(y|x); None if no candidate contains the answer.
    log_likelihood_null: log p(y|null,x); None of a question.
    utility: log p(y|x) − log p(y|null,x); None of a question.
    candidates: The null block of a masked sentence, then blocks by score.
    fillings: The best fillings or answers.
    unaided: What another model makes of the sentence without any text.
    notes: What a reader of the figures should know.
    checkpoint: Step of the checkpoint.
    generation: Step of the generation that was searched.
  """

  text: str
  kind: Kind
  read: str
  answer: str
  answer_is_given: bool
  wordpieces: Sequence[str]
  log_likelihood: float | None
  log_likelihood_null: float | None
  utility: float | None
  candidates: Sequence[Candidate]
  fillings: Sequence[Filling]
  unaided: Unaided | None
  notes: Sequence[str]
  checkpoint: int
  generation: int

  @property
  def probability(self) -> float:
    """p(y|x)."""
    return probability(self.log_likelihood)

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


def probability(log_probability: float | None) -> float:
  """Returns a probability from its logarithm; None stands for −∞."""
  return 0.0 if log_probability is None else math.exp(log_probability)


def explanation_text(explained: Explanation, *, num_texts: int) -> str:
  """Returns tables for a terminal, and the texts of the first blocks."""
  is_question = explained.kind == "question"
  parts = [_head(explained)]
  if explained.candidates:
    parts.append(_candidates_table(explained.candidates, is_question))
  legend = _LEGENDS[explained.kind]
  parts.append(textwrap.fill(legend, _WIDTH, break_on_hyphens=False))
  if explained.fillings:
    title = "best answers" if is_question else "best fillings"
    parts.append(_fillings_table(title, explained.fillings))
  if (unaided := explained.unaided) is not None:
    parts.append(
      _fillings_table(f"{unaided.model_dir}, unaided", unaided.fillings)
    )
  blocks = [one.block for one in explained.candidates if one.block.id]
  parts += [
    f"{block.title}  [{block.id}]\n"
    + textwrap.fill(
      block.text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
    )
    for block in blocks[:num_texts]
  ]
  return "\n\n".join(parts) + "\n"


def _head(explained: Explanation) -> str:
  lines = [explained.text]
  if explained.answer:
    how = "given" if explained.answer_is_given else "the best"
    pieces = " ".join(explained.wordpieces)
    lines.append(f"y = {explained.answer!r} ({how}; wordpieces: {pieces})")
  figures = {"p(y|x)": _short_number(explained.log_likelihood)}
  if explained.kind == "masked sentence":
    figures["p(y|x) by the null block"] = _short_number(
      explained.log_likelihood_null
    )
    figures["utility of retrieval"] = signed(explained.utility)
  unaided = explained.unaided
  if unaided is not None and unaided.log_likelihood is not None:
    pieces = len(unaided.wordpieces)
    figures[f"p(y|x) by {unaided.model_dir}"] = (
      f"{_short_number(unaided.log_likelihood)}  ({pieces} wordpieces)"
    )
  figures["checkpoint, generation"] = (
    f"{explained.checkpoint}, {explained.generation}"
  )
  lines.append(figures_table(figures))
  lines += [textwrap.fill(f"Note: {n}.", _WIDTH) for n in explained.notes]
  return "\n".join(lines)


def _candidates_table(
  candidates: Sequence[Candidate], is_question: bool
) -> str:
  # Columns by their heads; those of the other kind are left out.
  cells: dict[str, Callable[[Candidate], str]] = {
    "p(z|x)": lambda one: f"{one.probability:.4f}",
    "p(y|z,x)": lambda one: _short_number(one.log_likelihood),
    "share": lambda one: "–" if one.share is None else f"{one.share:.4f}",
    "utility": lambda one: signed(one.utility),
    "r(z)": lambda one: signed(one.reward),
    "retriever": lambda one: f"{one.block.probability:.4f}",
    "alone it says": lambda one: one.best.text[:18] if one.best else "",
    "with p": lambda one: f"{one.best.probability:.3g}" if one.best else "",
  }
  for name in ("utility", "r(z)") if is_question else ("retriever",):
    del cells[name]
  rows: list[list[str]] = [["candidate", *cells]]
  for rank, one in enumerate(candidates, start=int(is_question)):
    mark = " *" if one.contains_text else ""
    name = f"{rank}. {shortened(one.block.title, 20)} [{one.block.id}]{mark}"
    name = name if one.block.id else "(null block)"
    rows.append([name, *(cell(one) for cell in cells.values())])
  return columns(rows)


def _fillings_table(title: str, fillings: Sequence[Filling]) -> str:
  has_null = any(one.without_retrieval is not None for one in fillings)
  rows = [[title, "p(y|x)", *(["by the null block"] if has_null else [])]]
  for one in fillings:
    numbers = [one.probability, one.without_retrieval][: 1 + has_null]
    rows.append([shortened(one.text, 40), *(f"{n:.4g}" for n in numbers)])
  return columns(rows)


def shortened(text: str, limit: int) -> str:
  """Returns a text of at most `limit` characters."""
  return text if len(text) <= limit else text[: limit - 1] + "…"


def signed(value: float | None) -> str:
  """Returns a number with its sign, or a dash for None."""
  return "–" if value is None else f"{value:+.4f}"


def _short_number(log_probability: float | None) -> str:
  return f"{probability(log_probability):.4g}"
