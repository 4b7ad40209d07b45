"""Sources with random access to records, from which a run resumes anywhere.

A task with its own storage extends `RandomAccessSource`; `blocks.CorpusSource`
reads blocks of a corpus, and `json_lines.JsonLinesSource` lines of JSON.
"""

import abc
import random
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int

from realm_jax.inputs import order
from realm_jax.inputs.context import TaskError

# One value for each record: scalars, or arrays of any length.
Column: TypeAlias = (
  np.ndarray | Sequence[int | float | bool | bytes | np.ndarray]
)

# Records that one call into Python reads, which hides the cost of the call.
_RECORDS_PER_LOOKUP = 64


@runtime_checkable
class Records(Protocol):
  """The records of one split."""

  @property
  def spec(self) -> Mapping[str, tf.TensorSpec]:
    """The features of a record; only their first axis may be None."""
    ...

  def __len__(self) -> int: ...

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads records; returns each feature's values in them."""
    ...


class RandomAccessSource(seqio.DataSource):
  """A seqio source with random access to its records.

  Each record gets two more features: "position" int64, its position in the
  stream, and "seed" int32[2], for the `tf.random.stateless_…` functions of
  preprocessors.
  """

  @abc.abstractmethod
  def open(self, split: str) -> Records:
    """Opens the records of a split; called inside the task context."""

  def num_input_examples(self, split: str) -> int:
    """Returns the number of records of a split."""
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
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """Returns one epoch, for seqio.

    seqio may repeat this epoch with the same seeds; `ExampleStream` gives
    every epoch its own order and seeds.
    """
    del sequence_length, use_cached, num_epochs
    if seed is None:
      seed = random.SystemRandom().getrandbits(31) if shuffle else 0
    shards = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    reader = RecordReader(self, split, seed=seed, shuffle=shuffle)
    return reader.records_at(
      tf.data.Dataset.range(shards.index, reader.num_records, shards.num_shards)
    )


def record_seed(
  seed: int, position: Int[tf.Tensor, ""]
) -> Int[tf.Tensor, " 2"]:
  """Returns the seed, int32[2], of the record at a position.

  It has the two words of the position, the upper one mixed with the run's
  seed, so that all positions of a run have different seeds.
  """
  run = np.array([0, seed % 2**32], np.uint32).view(np.int32)
  return tf.bitwise.bitwise_xor(tf.bitcast(position, tf.int32), run)


class RecordReader:
  """Reads the records of one split at given positions of the stream.

  Attributes:
    error: Exception of a lookup, since tf.data keeps only its text.
  """

  error: Exception | None = None

  def __init__(
    self, source: RandomAccessSource, split: str, *, seed: int, shuffle: bool
  ):
    self._records = source.open(split)
    self._seed = seed
    self._shuffle = shuffle
    self.num_records = len(self._records)
    if not self.num_records:
      raise TaskError(f"{source} has no record in split {split!r}")

  def records(self, start: int, *, repeat: bool) -> tf.data.Dataset:
    """Returns the records from position `start` on, of one epoch or of all."""
    limit = tf.int64.max if repeat else self.num_records
    return self.records_at(tf.data.Dataset.range(start, limit))

  def records_at(self, positions: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the records at positions, a data set of int64, in that order."""
    spec = self._records.spec
    ragged = [name for name in spec if spec[name].shape.rank]
    types = [spec[name].dtype for name in spec] + [tf.int64] * len(ragged)

    def one_batch(batch: tf.Tensor) -> tf.data.Dataset:
      values = tf.numpy_function(self._lookup, [batch], types, stateful=False)
      flat = dict(zip(spec, values[: len(spec)], strict=True))
      offsets = dict(zip(ragged, values[len(spec) :], strict=True))

      def one_record(index: tf.Tensor) -> dict[str, tf.Tensor]:
        position = batch[index]
        seed = record_seed(self._seed, position)
        record = {"position": position, "seed": seed}
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
    """Returns each column end to end, then the offsets of the ragged ones."""
    try:
      indices = order.record_indices(
        positions,
        size=self.num_records,
        seed=self._seed,
        shuffle=self._shuffle,
      )
      columns = self._records.lookup(indices)
      flat, offsets = [], []
      for name, spec in self._records.spec.items():
        dtype = spec.dtype.as_numpy_dtype
        if not spec.shape.rank:
          flat.append(np.asarray(columns[name], dtype))
          continue
        values = [np.asarray(value) for value in columns[name]]
        offsets.append(np.cumsum([0, *map(len, values)], dtype=np.int64))
        flat.append(np.concatenate(values).astype(dtype, copy=False))
      return flat + offsets
    except Exception as error:
      self.error = error
      raise
