"""Results: answers of a run, with the blocks from which they come.

Questions, explanations, the page, HTTP and notebooks all use `Result`. Commands
and the service write it as `Result.json`.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from realm_jax.corpus.store import Block
from realm_jax.settings import Asked


class Answer(NamedTuple):
  """An answer, and its position in a block if the reader points at spans.

  Attributes:
    text: Answer, as spelled in the block or written by the reader.
    probability: p(y|x), or p(y|z,x) for the best answer from one block.
    score: The reader's score for ranking answers, if any; for a span, the
      span's score plus the score of its block.
    shares: Part of the probability that each read block contributes; their sum
      is 1. Empty if the reader reads all blocks at once.
    block: Block of the best span; None for a reader that writes.
    start: Offset of the span's first character in the text of the block.
    limit: Offset after its last character.
    without_retrieval: p(y|null,x), for a filling.
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
    """Returns the answer as JSON values, with the id of its block."""
    return {**self._asdict(), "block": self.block and self.block.id}


@dataclasses.dataclass(frozen=True)
class Hit:
  """A retrieved block, and its part in the answer y if it was read.

  The reader's values are None if the block was not read, or if the reader reads
  all blocks at once.

  Attributes:
    block: The block; `NULL_BLOCK` has the row −1 and no words.
    score: Score for ranking blocks: f(x,z) times the retriever's scale, or the
      score of a cross-encoder.
    probability: Retriever's p(z|x), over the retrieved blocks.
    weight: p(z|x) over the blocks that were read, by retriever and reader.
    likelihood: p(y|z,x).
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    best: Most likely answer in the block; None in a block without words.
    contains_text: Whether the block contains the text x verbatim, so that its
      retrieval is trivial; only in explanations.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    utility: log p(y|z,x) − log p(y|null,x); None for a question, which has no
      null block.
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
    """Returns the block and the values that it has, for JSON."""
    of_block = "row", "id", "title", "text", "url", "fields"
    values = {
      **vars(self),
      "block": None,
      "best": self.best and self.best.json(),
      "reward": self.reward,
    }
    if len(self.block.parts) > 1:
      parts = self.block.parts
      values["path"] = [{n: getattr(p, n) for n in of_block} for p in parts]
    return {name: getattr(self.block, name) for name in of_block} | {
      name: value for name, value in values.items() if value is not None
    }


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
  """Answers of a run to a text, with their blocks and probabilities.

  Attributes:
    text: Question or sentence with [MASK], unchanged.
    kind: Kind of the text, question or masked sentence.
    answer: The answer y that the hits' values refer to: the best one, or the
      one that was asked about; empty if the blocks that were read are empty.
    probability: p(y|x); 0 if the answer is in no block.
    answers: Answers or fillings that differ once normalized, best first.
    hits: Blocks that were read, best first. The null block of a sentence comes
      before all others.
    source: Run that answered: `model_dir`, `checkpoint` and `snapshot`.
    answer_is_given: Whether the answer was asked about; else it is the best.
    utility: log p(y|x) − log p(y|null,x); None for a question.
    notes: Caveats about the values. Only explanations have these notes and the
      attributes that follow.
    read: Text in wordpieces, as the model read it.
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
    """Returns the block of an answer, and its text in three parts.

    The parts are the text before the answer, the answer, and the text after it.
    For a reader that writes, this is the block with the greatest share, with
    its whole text as the first part.

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
    """Returns the result as JSON values (docs/service.md lists the fields).

    Example:
      >>> found = run.ask("where was Ada born?").json()
      >>> found["text"], found["kind"], len(found["blocks"])
      ('where was Ada born?', 'question', 5)
    """
    values = {
      **vars(self),
      "answers": [answer.json() for answer in self.answers],
      "blocks": [hit.json() for hit in self.hits],
      **self.source,
    }
    del values["hits"], values["source"]
    return values

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
