"""Masked sentences of a task, whose answers are known."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int, Int64

from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.trained_model import whole_batch
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.text.wordpieces import WordpieceVocabulary


@dataclasses.dataclass(frozen=True)
class KnownSentences:
  """A batch of sentences, whose rows are a multiple of the devices.

  There may be more rows than sentences; the further rows are not counted.

  Attributes:
    texts: Each sentence with its [MASK]s.
    answers: Words behind them.
    query: `[CLS] x [SEP]`.
    positions: Positions of the masks in the query.
    targets: Wordpieces behind them.
    weights: 1 where there is a mask, 0 at padding.
    source_hashes: Content hash of the block that a sentence was taken from.
  """

  texts: Sequence[str]
  answers: Sequence[str]
  query: Int[np.ndarray, "b q"]
  positions: Int[np.ndarray, "b m"]
  targets: Int[np.ndarray, "b m"]
  weights: Float[np.ndarray, "b m"]
  source_hashes: Int64[np.ndarray, " b"]

  def __len__(self) -> int:
    return len(self.texts)


def draw_sentences(
  data: DataConfig, num: int, words: WordpieceVocabulary
) -> Iterator[KnownSentences]:
  """Yields `num` sentences of a task of masked sentences, in batches.

  Raises:
    TaskError: There is no such task, or it gives no masked sentences.
    ExplanationError: `num` is not positive.
  """
  if num < 1:
    raise ExplanationError(f"num_sampled={num}; want 1 or more")
  size = whole_batch(min(data.batch_size, num))
  data = dataclasses.replace(data, batch_size=size)
  with contextlib.closing(BatchStream(data)) as stream:
    for start in range(0, num, size):
      yield _of_batch(next(stream), min(size, num - start), words)


def _of_batch(
  batch: Batch, num: int, words: WordpieceVocabulary
) -> KnownSentences:
  query = batch.array("query")
  positions, targets, weights = (
    batch.array(f"mask_{name}") for name in ("positions", "targets", "weights")
  )
  texts, answers = [], []
  for i in range(num):
    inside = query[i][query[i] != 0][1:-1]
    texts.append(words.decode(inside.tolist()))
    answers.append(words.decode(targets[i][weights[i] > 0].tolist()))
  return KnownSentences(
    texts,
    answers,
    query,
    positions,
    targets,
    weights,
    batch.array("source_hash"),
  )
