"""What a run answers, and the blocks that the answer comes from.

Questions, explanations, the page, HTTP and notebooks all give a `Result`, and
`Result.json` is the form in which commands and the service write it.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from realm_jax.corpus.store import Block
from realm_jax.settings import Asked


class Answer(NamedTuple):
  """An answer, and its place in a block if the reader points at one.

  Attributes:
    text: Answer as the block spells it, or as the reader writes it.
    probability: p(y|x), or p(y|z,x) of the best answer from one block.
    score: Score by which the reader ranks it, if it has one; for a span, the
      span's score plus the score of its block.
    shares: The part of the probability from each block that was read; their sum
      is 1. Empty if the reader reads all blocks at once.
    block: Block of its best span; None of a reader that writes.
    start: Offset of the span's first character in the text of the block.
    limit: Offset after its last character.
    without_retrieval: p(y|null,x) of a filling.
  """

  text: str
  probability: float
  score: float | None = None
  shares: Sequence[float] = ()
  block: Block | None = None
  start: int | None = None
  limit: int | None = None
  without_retrieval: float | None = None

  def json(self) -> dict[str, Any]:
    """Returns the answer as values of JSON, with the id of its block."""
    return {**self._asdict(), "block": self.block and self.block.id}


@dataclasses.dataclass(frozen=True)
class Hit:
  """A block that was retrieved, and its part in the answer y if it was read.

  What only a reader knows is None if the block was not read, or if the reader
  reads all blocks at once and has no such figure.

  Attributes:
    block: The block; `NULL_BLOCK` has the row −1 and no words.
    score: What the blocks are ordered by: f(x,z), times the retriever's scale,
      or the score of a cross-encoder.
    probability: The retriever's p(z|x), over the blocks that were retrieved.
    weight: p(z|x) over the blocks that were read, by retriever and reader.
    likelihood: p(y|z,x).
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    best: What the reader finds most likely here; None in a block without words.
    contains_text: Whether the block contains the text x word for word, so that
      its retrieval is trivial. Explanations have it.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    utility: log p(y|z,x) − log p(y|null,x); None of a question, for which
      there is no null block.
    retriever_score: f(x,z), times the retriever's scale, if `score` is another
      model's.
  """

  block: Block
  score: float
  probability: float
  weight: float | None = None
  likelihood: float | None = None
  share: float | None = None
  best: Answer | None = None
  contains_text: bool | None = None
  token_log_likelihoods: Sequence[float] | None = None
  utility: float | None = None
  retriever_score: float | None = None

  @property
  def relevance(self) -> float:
    """f(x,z), times the retriever's scale."""
    scores = self.retriever_score, self.score
    return next(score for score in scores if score is not None)

  @property
  def reward(self) -> float | None:
    """r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), or ∂ log p(y|x) / ∂ f(x,z)."""
    if self.share is None or self.weight is None:
      return None
    return self.share - self.weight

  def json(self) -> dict[str, Any]:
    """Returns block and figures as values of JSON, without those it lacks."""
    of_block = "row", "id", "title", "text", "url", "fields"
    figures = {
      **vars(self),
      "block": None,
      "best": self.best and self.best.json(),
      "reward": self.reward,
    }
    if len(self.block.parts) > 1:
      parts = self.block.parts
      figures["path"] = [{n: getattr(p, n) for n in of_block} for p in parts]
    return {name: getattr(self.block, name) for name in of_block} | {
      name: value for name, value in figures.items() if value is not None
    }


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
  """What a run answers to a text, from which blocks, and how sure it is.

  Attributes:
    text: Question, or sentence with [MASK], as it was given.
    kind: Which of the two it is.
    answer: The answer y that the hits' figures are of: the best one, or the one
      that was asked about; empty if the blocks that were read have no words.
    probability: p(y|x); 0 if no block gives the answer.
    answers: Answers or fillings that differ once normalized, best first.
    hits: Blocks that were read, best first. The null block of a sentence comes
      before all others.
    source: Run that gave it: `model_dir`, `checkpoint` and `snapshot`.
    answer_is_given: Whether the answer was asked about, or is the best one.
    utility: log p(y|x) − log p(y|null,x); None of a question.
    notes: What a reader of the figures should know. Explanations have them, and
      what follows.
    read: The text in wordpieces, as the model read it.
    wordpieces: Wordpieces of the answer.
  """

  text: str
  kind: Asked
  answer: str
  probability: float
  answers: Sequence[Answer]
  hits: Sequence[Hit]
  source: Mapping[str, Any]
  answer_is_given: bool = False
  utility: float | None = None
  notes: Sequence[str] = ()
  read: str = ""
  wordpieces: Sequence[str] = ()

  def passage(self, answer: Answer) -> tuple[Hit, str, str, str]:
    """Returns the block that an answer is from, and its text in three parts.

    These are what is before the answer, the answer and what is after it. A
    reader that writes points at no words: then it is the block with the
    greatest share, whose text is all before.

    Example:
      >>> result = run.ask("where was Ada born?")
      >>> hit, before, answer, after = result.passage(result.answers[0])
      >>> before + answer + after == hit.block.text
      True
    """
    if answer.block is None:
      shares = dict(enumerate(answer.shares))
      hit = self.hits[max(shares, key=shares.__getitem__, default=0)]
      return hit, hit.block.text, "", ""
    (hit,) = (one for one in self.hits if one.block.id == answer.block.id)
    text = hit.block.text
    return hit, text[: answer.start], answer.text, text[answer.limit :]

  def json(self) -> dict[str, Any]:
    """Returns all as values of JSON; docs/service.md describes the fields.

    Example:
      >>> found = run.ask("where was Ada born?").json()
      >>> found["text"], found["kind"], len(found["blocks"])
      ('where was Ada born?', 'question', 5)
    """
    told = {
      **vars(self),
      "answers": [answer.json() for answer in self.answers],
      "blocks": [hit.json() for hit in self.hits],
      **self.source,
    }
    del told["hits"], told["source"]
    return told

  def __repr__(self) -> str:
    return f"<{self.text!r}: {self.answer!r} ({self.probability:.3g})>"

  def _repr_html_(self) -> str:
    """Returns the answers in their blocks as a table, for a notebook."""
    rows = ["<tr><th>answer<th>p(y|x)<th>document<th>text"]
    for answer in self.answers:
      hit, *parts = self.passage(answer)
      text, title = html.escape(answer.text), html.escape(hit.block.title)
      before, marked, after = map(html.escape, parts)
      rows.append(
        f"<tr><td>{text}<td>{answer.probability:.3f}<td>{title}"
        f"<td>{before}<mark>{marked}</mark>{after}"
      )
    caption = f"<caption>{html.escape(self.text)}</caption>"
    return f"<table>{caption}{''.join(rows)}</table>"
