"""Answers to a question, whichever reader gives them."""

import dataclasses
import functools
import html
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.evaluation.run import RetrievedBlock, TrainedRun
from realm_jax.indexes.protocol import SearchResult


class Answer(NamedTuple):
  """An answer, and its place in a block if the reader points at one.

  Attributes:
    text: Answer as the block spells it, or as the reader writes it.
    probability: p(y|x).
    score: Score by which the reader ranks it; for a span, the span's score plus
      the score of its block.
    shares: The part of the probability from each block that was read; their sum
      is 1.
    block: Block of its best span; None of a reader that writes.
    start: Offset of the span's first character in the text of the block.
    limit: Offset after its last character.
  """

  text: str
  probability: float
  score: float
  shares: Sequence[float]
  block: RetrievedBlock | None = None
  start: int | None = None
  limit: int | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Answered:
  """The answers of a question, and the blocks that were retrieved for it.

  Attributes:
    question: Question as it was asked.
    answers: Answers that differ once normalized, best first; empty if the
      blocks that were read have no words.
    blocks: Blocks that were retrieved, best first.
    read: Places in `blocks` of those that were read.
    retrieval_probability: p(z|x) of each block that was read, by retriever and
      reader.
    alone: Best answer from each block that was read, with its probability given
      the block; None of a block without words.
    given: Answer that was asked about, if any; None if no block gives it.
  """

  question: str
  answers: Sequence[Answer]
  blocks: Sequence[RetrievedBlock]
  read: Sequence[int]
  retrieval_probability: Sequence[float]
  alone: Sequence[Answer | None]
  given: Answer | None = None

  @property
  def text(self) -> str:
    """Text of the best answer; empty if there is none."""
    return self.answers[0].text if self.answers else ""

  @property
  def probability(self) -> float:
    """Probability of the best answer; 0 if there is none."""
    return self.answers[0].probability if self.answers else 0.0

  def passage(self, answer: Answer) -> tuple[RetrievedBlock, str, str, str]:
    """Returns the block that an answer is from, and its text in three parts.

    These are what is before the answer, the answer and what is after it. A
    reader that writes points at no words: then it is the block with the
    greatest share, whose text is all before.
    """
    if (block := answer.block) is None:
      best = max(range(len(self.read)), key=lambda k: answer.shares[k])
      block = self.blocks[self.read[best]]
      return block, block.text, "", ""
    before, after = block.text[: answer.start], block.text[answer.limit :]
    return block, before, answer.text, after

  def __repr__(self) -> str:
    return f"<{self.question!r}: {self.text!r} ({self.probability:.3f})>"

  def _repr_html_(self) -> str:
    """Returns the answers in their blocks as a table, for a notebook."""
    rows = ["<tr><th>answer<th>p(y|x)<th>document<th>text"]
    for answer in self.answers:
      block, *parts = self.passage(answer)
      text, title = html.escape(answer.text), html.escape(block.title)
      before, marked, after = map(html.escape, parts)
      rows.append(
        f"<tr><td>{text}<td>{answer.probability:.3f}<td>{title}"
        f"<td>{before}<mark>{marked}</mark>{after}"
      )
    caption = f"<caption>{html.escape(self.question)}</caption>"
    return f"<table>{caption}{''.join(rows)}</table>"


@functools.singledispatch
def answer_from_blocks(
  reader: Any,
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  found: SearchResult,
  places: Int[np.ndarray, "b k"],
  given: str | None = None,
) -> list[Answered]:
  """Answers questions from blocks that were retrieved for them.

  Each kind of reader has a function of its own, which is registered for its
  class: `@answer_from_blocks.register(MyReader)`.

  Args:
    reader: Module of the run's reader.
    run: Run, with the parameters of the reader.
    questions: Questions.
    token_ids: The same in wordpieces, `[CLS] x [SEP]`, padded with 0.
    found: Blocks that were retrieved for each, best first.
    places: Places of the blocks to read among these.
    given: Answer to look for besides, in `Answered.given`.

  Raises:
    CheckpointError: The reader does not answer questions.
  """
  del questions, token_ids, found, places, given
  raise CheckpointError(
    f"the reader of {run!r}, a {type(reader).__name__}, answers no questions; "
    "register a function for it by `answer_from_blocks.register`"
  )
