"""Sources that read any record at once, so that a run resumes anywhere.

A task that brings its own storage extends `RandomAccessSource`; blocks of a
corpus come from `blocks.CorpusSource`, lines of JSON from
`json_lines.JsonLinesSource`.
"""

import abc
import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int

from realm_jax.inputs import order
from realm_jax.inputs.context import TaskError

# One value a record: scalars, or arrays of any length.
Column = Sequence[Any] | np.ndarray

# Records that one call into Python looks up, which hides the call's cost.
_RECORDS_PER_LOOKUP = 64


class Records(Protocol):
  """The records of one split, opened."""

  @property
  def spec(self) -> Mapping[str, tf.TensorSpec]:
    """The features of a record; only their first axis may be None."""
    ...

  def __len__(self) -> int: ...

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads records: for each feature, its value in each of them."""
    ...


class RandomAccessSource(seqio.DataSource):
  """A seqio source that gives any record at once.

  A subclass opens a split's records. Each record comes with two features
  more: "position" int64, its place in the stream, and "seed" int32[2], for the
  `tf.random.stateless_…` functions of preprocessors.
  """

  @abc.abstractmethod
  def open(self, split: str) -> Records:
    """The records of a split; called where the task context is known."""

  def num_input_examples(self, split: str) -> int:
    return len(self.open(split))

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    return [split]

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **unused: Any,
  ) -> tf.data.Dataset:
    """One epoch, as seqio asks for it.

    seqio may repeat this epoch, and then its seeds too; `ExampleStream` gives
    every epoch an order and seeds of its own.
    """
    if seed is None:
      seed = random.SystemRandom().getrandbits(31) if shuffle else 0
    shards = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    reader = RecordReader(self, split, seed=seed, shuffle=shuffle)
    return reader.records_at(
      tf.data.Dataset.range(shards.index, reader.num_records, shards.num_shards)
    )


def record_seed(seed: int, position: tf.Tensor) -> tf.Tensor:
  """The seed, int32[2], of the record at a position.

  It is the position's two words, the upper one mixed with the run's seed, so
  that no two positions of a run share it.
  """
  run = np.array([0, seed % 2**32], np.uint32).view(np.int32)
  return tf.bitwise.bitwise_xor(tf.bitcast(position, tf.int32), run)


@dataclasses.dataclass
class RecordReader:
  """Reads the records of one split at given positions of the stream.

  Attributes:
    error: what a lookup raised, since tf.data keeps only its text.
  """

  source: RandomAccessSource
  split: str
  _: dataclasses.KW_ONLY
  seed: int
  shuffle: bool
  error: Exception | None = None

  def __post_init__(self):
    self._records = self.source.open(self.split)
    if not len(self._records):
      raise TaskError(f"{self.source} has no record in split {self.split!r}")

  @property
  def num_records(self) -> int:
    return len(self._records)

  def records(self, start: int, *, repeat: bool) -> tf.data.Dataset:
    """The records from position `start` on, to the end of the first epoch.

    Args:
      start: a position, 0 for the first.
      repeat: whether to go on with the epochs after it, without end.
    """
    limit = tf.int64.max if repeat else self.num_records
    return self.records_at(tf.data.Dataset.range(start, limit))

  def records_at(self, positions: tf.data.Dataset) -> tf.data.Dataset:
    """The records at positions (a data set of int64), in that order."""
    spec = self._records.spec
    ragged = [name for name in spec if spec[name].shape.rank]
    types = [spec[name].dtype for name in spec] + [tf.int64] * len(ragged)

    def one_batch(batch: tf.Tensor) -> tf.data.Dataset:
      values = tf.numpy_function(self._lookup, [batch], types, stateful=False)
      flat = dict(zip(spec, values[: len(spec)], strict=True))
      offsets = dict(zip(ragged, values[len(spec) :], strict=True))

      def one_record(index: tf.Tensor) -> dict[str, tf.Tensor]:
        position = batch[index]
        record = {
          "position": position,
          "seed": record_seed(self.seed, position),
        }
        for name, column in flat.items():
          if name in offsets:
            start, limit = offsets[name][index], offsets[name][index + 1]
            record[name] = column[start:limit]
          else:
            record[name] = column[index]
          record[name].set_shape(spec[name].shape)
        return record

      size = tf.size(batch, out_type=tf.int64)
      return tf.data.Dataset.range(size).map(one_record)

    return positions.batch(_RECORDS_PER_LOOKUP).flat_map(one_batch)

  def _lookup(self, positions: Int[np.ndarray, " n"]) -> list[np.ndarray]:
    """Every column end to end, then the offsets of the ragged ones."""
    try:
      indices = order.record_indices(
        positions, size=self.num_records, seed=self.seed, shuffle=self.shuffle
      )
      columns = self._records.lookup(indices)
      flat, offsets = [], []
      for name, spec in self._records.spec.items():
        dtype = spec.dtype.as_numpy_dtype
        if not spec.shape.rank:
          flat.append(np.asarray(columns[name], dtype))
          continue
        lengths = [len(value) for value in columns[name]]
        offsets.append(np.cumsum([0, *lengths], dtype=np.int64))
        flat.append(np.concatenate(columns[name]).astype(dtype, copy=False))
      return flat + offsets
    except Exception as error:
      self.error = error
      raise
