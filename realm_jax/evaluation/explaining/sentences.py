"""Masked sentences whose answers are known, to look at again and again."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath
from jaxtyping import Float, Int, Int64

from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.masked_text import (
  MaskedQuery,
  MaskLimits,
  is_masked,
  masked_query,
)
from realm_jax.evaluation.trained_model import whole_batch
from realm_jax.inputs.batches import Batch, BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.text.wordpieces import WordpieceVocabulary

_WANTED = 'wanted {"sentence": "… [MASK] …", "answer": "…"} on every line'


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
    source_hashes: Content hash of the block that a sentence was taken from; 0
      of a sentence that was taken from none.
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


def read_sentences(
  path: epath.PathLike,
  words: WordpieceVocabulary,
  limits: MaskLimits,
  *,
  batch_size: int,
) -> list[KnownSentences]:
  """Reads JSON Lines of `{"sentence": …, "answer": …}`, in batches.

  Raises:
    ExplanationError: The file is missing or empty, a line is malformed, or its
      sentence does not fit; the message has the number of the line.
  """
  path = epath.Path(path)
  if not path.is_file():
    raise ExplanationError(f"there is no file {path}; {_WANTED}")
  parsed = []
  for number, line in enumerate(path.read_text().splitlines(), start=1):
    if not line.strip():
      continue
    try:
      parsed.append(_parse(line, words, limits))
    except ValueError as error:
      raise ExplanationError(f"{path}, line {number}: {error}") from error
  if not parsed:
    raise ExplanationError(f"{path} has no sentence; {_WANTED}")
  size = whole_batch(min(batch_size, len(parsed)))
  return [
    _of_lines(parsed[start : start + size], size, words, limits)
    for start in range(0, len(parsed), size)
  ]


def _parse(
  line: str, words: WordpieceVocabulary, limits: MaskLimits
) -> tuple[str, str, MaskedQuery]:
  """Raises ValueError if the line is no sentence with its answer."""
  fields = json.loads(line)
  if not isinstance(fields, dict):
    raise ValueError(f"it is a {type(fields).__name__}; {_WANTED}")
  text, answer = fields.get("sentence"), fields.get("answer")
  if not isinstance(text, str) or not isinstance(answer, str):
    raise ValueError(f"it has {sorted(fields)}; {_WANTED}")
  if not is_masked(text):
    raise ValueError(f"{text!r} has no [MASK]; {_WANTED}")
  return text, answer, masked_query(text, answer, words, limits)


def _of_lines(
  parsed: Sequence[tuple[str, str, MaskedQuery]],
  size: int,
  words: WordpieceVocabulary,
  limits: MaskLimits,
) -> KnownSentences:
  """Returns a batch of `size` rows, which repeats lines to fill it up."""
  padded = [parsed[i % len(parsed)][2] for i in range(size)]
  shape = (size, limits.max_masks)
  targets, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
  for i, masked in enumerate(padded):
    assert masked.target_ids is not None
    targets[i, : masked.num_masks] = masked.target_ids
    weights[i, : masked.num_masks] = 1
  return KnownSentences(
    [text for text, _, _ in parsed],
    [answer for _, answer, _ in parsed],
    np.stack([masked.query(words, limits.query_length) for masked in padded]),
    np.stack([masked.mask_positions(limits.max_masks) for masked in padded]),
    targets,
    weights,
    np.zeros(size, np.int64),
  )


def draw_sentences(
  data: DataConfig, num: int, words: WordpieceVocabulary
) -> Iterator[KnownSentences]:
  """Yields `num` sentences of a task of masked sentences, in batches.

  Raises:
    TaskError: There is no such task, or it gives no masked sentences.
    ExplanationError: `num` is not positive.
  """
  if num < 1:
    raise ExplanationError(f"num_sentences={num}; want 1 or more")
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
