"""Sources with random access to records, from which a run resumes anywhere.

A task with its own storage extends `RandomAccessSource`; `blocks.CorpusSource`
reads blocks of a corpus, and the sources of `questions` read questions.

Position p of a stream is record `permutation(seed, p // N)[p % N]` of N. The
permutation is a Feistel network with cycle walking (Black and Rogaway 2002,
"Ciphers with arbitrary finite domains"). It takes no memory, whatever N is,
and a run resumes anywhere at once.
"""

import abc
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int, UInt64

from realm_jax.inputs.config import TaskError

# One value for each record: scalars, or arrays of any length.
Column: TypeAlias = (
  np.ndarray | Sequence[int | float | bool | bytes | np.ndarray]
)

# Records that one call into Python reads, which hides the cost of the call.
_RECORDS_PER_LOOKUP = 64
_ROUNDS = 6
# Fewer bits would give too few distinct permutations of tiny sources.
_MIN_HALF_BITS = 3


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


def _mix(words: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
  """Scatters all bits, as the finaliser of splitmix64 (Steele et al. 2014)."""
  words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return words ^ (words >> np.uint64(31))


def _permute(
  values: UInt64[np.ndarray, "n"], keys: UInt64[np.ndarray, "n"], size: int
) -> UInt64[np.ndarray, "n"]:
  """Maps each value below `size` by the permutation of its key."""
  half = np.uint64(
    max(_MIN_HALF_BITS, (max(size - 1, 1).bit_length() + 1) // 2)
  )
  mask = (np.uint64(1) << half) - np.uint64(1)
  values = values.copy()
  walking = np.arange(len(values))
  # The network permutes 0 … 4^half − 1. A value that leaves 0 … size − 1 is
  # mapped again until it is back, which keeps the map one to one.
  while len(walking):
    left, right = values[walking] >> half, values[walking] & mask
    for round_key in range(1, _ROUNDS + 1):
      scattered = _mix(
        keys[walking] + right * np.uint64(16) + np.uint64(round_key)
      )
      left, right = right, left ^ (scattered & mask)
    values[walking] = (left << half) | right
    walking = walking[values[walking] >= size]
  return values


def record_indices(
  positions: Int[np.ndarray, "n"], *, size: int, seed: int, shuffle: bool = True
) -> Int[np.ndarray, "n"]:
  """Returns the records at positions, from 0, of an endless stream.

  Position p is in epoch p // `size`. Every epoch has its own order; without
  `shuffle`, all keep the source's.
  """
  epochs, within = np.divmod(np.asarray(positions, np.int64), size)
  if not shuffle:
    return within
  run_key = _mix(np.array([seed % 2**64], np.uint64))
  keys = _mix(run_key + epochs.astype(np.uint64))
  return _permute(within.astype(np.uint64), keys, size).astype(np.int64)


def position_hashes(
  positions: Int[np.ndarray, "n"], *, seed: int
) -> UInt64[np.ndarray, "n"]:
  """Returns a hash of the seed and of each position."""
  run_key = _mix(np.array([seed % 2**64], np.uint64))
  return _mix(run_key + positions.astype(np.uint64))


def record_seed(
  seed: int, position: Int[tf.Tensor, ""]
) -> Int[tf.Tensor, " 2"]:
  """Returns the seed, int32[2], of the record at a position.

  It has the two words of the position, the upper one mixed with the run's
  seed, so that all positions of a run have different seeds.
  """
  run = np.array([0, seed % 2**32], np.uint32).view(np.int32)
  return tf.bitwise.bitwise_xor(tf.bitcast(position, tf.int32), run)


class ColumnLayout:
  """How columns of records pass from numpy to tf.data.

  Each column goes end to end, and those of variable length are followed by
  their offsets.
  """

  def __init__(self, spec: Mapping[str, tf.TensorSpec]):
    self._spec = spec
    self._ragged = [name for name in spec if spec[name].shape.rank]
    self.types = [spec[name].dtype for name in spec]
    self.types += [tf.int64] * len(self._ragged)

  def flatten(self, columns: Mapping[str, Column]) -> list[np.ndarray]:
    """Returns each column end to end, then the offsets of the ragged ones."""
    flat, offsets = [], []
    for name, spec in self._spec.items():
      dtype = spec.dtype.as_numpy_dtype
      if name not in self._ragged:
        flat.append(np.asarray(columns[name], dtype))
        continue
      values = [np.asarray(value) for value in columns[name]]
      offsets.append(np.cumsum([0, *map(len, values)], dtype=np.int64))
      flat.append(np.concatenate(values).astype(dtype, copy=False))
    return flat + offsets

  def flatten_after_blank(
    self, columns: Mapping[str, Column] | None
  ) -> list[np.ndarray]:
    """Returns what `flatten` does, after a record that has nothing.

    Without columns, that record is the only one.
    """
    blanks = []
    for name, spec in self._spec.items():
      dtype = spec.dtype.as_numpy_dtype
      if name in self._ragged:
        inner = [size or 0 for size in spec.shape[1:]]
        blanks.append(np.zeros([0, *inner], dtype))
      else:
        blanks.append(np.array([b"" if dtype is object else 0], dtype))
    # The blank record lies between the offsets 0 and 0.
    blanks += [np.zeros(1, np.int64)] * len(self._ragged)
    if columns is None:
      ends = [np.zeros(1, np.int64)] * len(self._ragged)
      filled = [*(blank[:0] for blank in blanks[: len(self._spec)]), *ends]
    else:
      filled = self.flatten(columns)
    return [np.concatenate(pair) for pair in zip(blanks, filled, strict=True)]

  def record(
    self, tensors: Sequence[tf.Tensor], index: Int[tf.Tensor, ""]
  ) -> dict[str, tf.Tensor]:
    """Returns one record of columns that `flatten` has made."""
    columns = dict(zip(self._spec, tensors, strict=False))
    offsets = dict(zip(self._ragged, tensors[len(self._spec) :], strict=True))
    record = {}
    for name, column in columns.items():
      if name in offsets:
        start, limit = offsets[name][index], offsets[name][index + 1]
        record[name] = column[start:limit]
      else:
        record[name] = column[index]
      record[name].set_shape(self._spec[name].shape)
    return record


@runtime_checkable
class CheckedRecords(Records, Protocol):
  """Records that tell what a run should know of them."""

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Describes records that will not be used as they stand, kind by kind.

    Args:
      lengths: Largest length of each feature.
    """
    ...


class PositionReader(abc.ABC):
  """Reads the records at given positions of an endless stream.

  Attributes:
    num_records: Number of positions of an epoch.
    error: Exception of a lookup, since tf.data keeps only its text.
  """

  num_records: int
  error: Exception | None = None

  def __init__(self, *, seed: int):
    self._seed = seed

  @abc.abstractmethod
  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Describes records that will not be used as they stand, kind by kind."""

  @abc.abstractmethod
  def _types(self) -> list[tf.DType]:
    """Returns the types of the arrays that `_read` returns."""

  @abc.abstractmethod
  def _read(self, positions: Int[np.ndarray, " n"]) -> list[np.ndarray]:
    """Reads the records at positions, as arrays."""

  @abc.abstractmethod
  def _record(
    self, tensors: Sequence[tf.Tensor], index: Int[tf.Tensor, ""]
  ) -> dict[str, Any]:
    """Returns one of the records that `_read` has read."""

  def records(self, start: int, *, repeat: bool) -> tf.data.Dataset:
    """Returns the records from position `start` on, of one epoch or of all."""
    limit = tf.int64.max if repeat else self.num_records
    return self.records_at(tf.data.Dataset.range(start, limit))

  def records_at(self, positions: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the records at positions, a data set of int64, in that order."""

    def one_batch(batch: tf.Tensor) -> tf.data.Dataset:
      tensors = tf.numpy_function(
        self._read_or_note_error, [batch], self._types(), stateful=False
      )

      def one_record(index: tf.Tensor) -> dict[str, Any]:
        position = batch[index]
        seed = record_seed(self._seed, position)
        record = self._record(tensors, index)
        return {"position": position, "seed": seed, **record}

      size = tf.size(batch, out_type=tf.int64)
      return tf.data.Dataset.range(size).map(one_record)

    return positions.batch(_RECORDS_PER_LOOKUP).flat_map(one_batch)

  def _read_or_note_error(
    self, positions: Int[np.ndarray, " n"]
  ) -> list[np.ndarray]:
    try:
      return self._read(positions)
    except Exception as error:
      self.error = error
      raise


class RecordReader(PositionReader):
  """Reads the records of one split of a source.

  Attributes:
    layout: Layout of its columns.
  """

  def __init__(
    self, source: RandomAccessSource, split: str, *, seed: int, shuffle: bool
  ):
    super().__init__(seed=seed)
    self._records = source.open(split)
    self._shuffle = shuffle
    self.layout = ColumnLayout(self._records.spec)
    self.num_records = len(self._records)
    if not self.num_records:
      raise TaskError(f"{source} has no record in split {split!r}")

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    if isinstance(self._records, CheckedRecords):
      return self._records.problems(lengths)
    return ()

  def columns(self, positions: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads the records at positions, as columns."""
    return self._records.lookup(
      record_indices(
        positions,
        size=self.num_records,
        seed=self._seed,
        shuffle=self._shuffle,
      )
    )

  def _types(self) -> list[tf.DType]:
    return self.layout.types

  def _read(self, positions: Int[np.ndarray, " n"]) -> list[np.ndarray]:
    return self.layout.flatten(self.columns(positions))

  def _record(
    self, tensors: Sequence[tf.Tensor], index: Int[tf.Tensor, ""]
  ) -> dict[str, tf.Tensor]:
    return self.layout.record(tensors, index)
