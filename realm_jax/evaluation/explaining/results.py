"""An explanation as plain data, for a table, for JSON and for a web page."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from realm_jax.corpus.store import NULL_ROW, Corpus

Kind = Literal["masked sentence", "question"]


@dataclasses.dataclass(frozen=True)
class Block:
  """A candidate's text.

  Attributes:
    row: Row in the corpus; −1 of the null block.
    block: The block's name, `document id:ordinal`; empty of the null block.
    block_id: Stable id; None of the null block.
    title: Title of its document.
    body: Text as it was written.
  """

  row: int
  block: str
  block_id: int | None
  title: str
  body: str

  @classmethod
  def of(cls, corpus: Corpus, row: int) -> "Block":
    """Returns the block of a row; −1 is the null block."""
    if row == NULL_ROW:
      return cls(row, "", None, "", "")
    block = corpus.block(row)
    return cls(row, block.name, block.id, block.title, block.body)


@dataclasses.dataclass(frozen=True)
class CandidateAnswer:
  """What the reader finds most likely in one candidate.

  Attributes:
    text: Filling, or answer.
    probability: Its probability given this candidate.
    start_byte, limit_byte: Bytes of the body, in UTF-8, of an answer; None of
      a filling, which need not be in the block.
  """

  text: str
  probability: float
  start_byte: int | None = None
  limit_byte: int | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One candidate z, and its part in p(y|x), y being the answer explained.

  Attributes:
    source: The block.
    score: f(x,z).
    probability: p(z|x), over the candidates.
    log_likelihood: log p(y|z,x); None where the block does not contain y.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    utility: log p(y|z,x) − log p(y|null,x); None of a question, for which
      there is no null block.
    reward: r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), the derivative of log p(y|x)
      by f(x,z); None if p(y|x) is 0.
    best: What the reader finds most likely here; None in a block without text.
    contains_sentence: Whether the block contains the text word for word, so
      that its retrieval is trivial.
  """

  source: Block
  score: float
  probability: float
  log_likelihood: float | None
  token_log_likelihoods: Sequence[float]
  share: float | None
  utility: float | None
  reward: float | None
  best: CandidateAnswer | None
  contains_sentence: bool


@dataclasses.dataclass(frozen=True)
class Filling:
  """A filling of the masks, or an answer to a question.

  Attributes:
    text: Words.
    probability: Σ_z p(z|x) p(y|z,x).
    without_retrieval: p(y|null,x); None of an answer to a question.
    by_released_reader: Softmax over the sums of span and block scores, by
      which `realm_jax.ask` and Google's reader rank answers; None of a filling.
  """

  text: str
  probability: float
  without_retrieval: float | None = None
  by_released_reader: float | None = None


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
    answer_is_given: Whether the answer was given, or is the most likely one.
    wordpieces: Wordpieces of the answer.
    log_likelihood: log p(y|x); None if no candidate contains the answer.
    log_likelihood_null: log p(y|null,x); None of a question.
    utility: log p(y|x) − log p(y|null,x); None of a question.
    candidates: The null block of a masked sentence, then blocks by p(z|x).
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

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


def finite(value: float | np.floating) -> float | None:
  """Returns a number, or None for −∞, which JSON cannot hold."""
  return float(value) if math.isfinite(value) else None
