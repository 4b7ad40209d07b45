"""Sources with random access to records, so that runs can resume anywhere.

A task with its own storage extends `RandomAccessSource`; `blocks.CorpusSource`
reads blocks of a corpus, and the sources of `questions` read questions. The
records of other sources, such as lines of text, are read into memory.

Position p of a stream is record `permutation(seed, p // N)[p % N]` of N. The
permutation is a Feistel network with cycle walking (Black and Rogaway 2002,
"Ciphers with arbitrary finite domains"). It needs no memory for any N.
"""

import abc
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int, UInt64

from realm_jax.inputs.batch import padded
from realm_jax.inputs.config import TaskError, current_context

# TensorFlow only prepares data. With its first tensor it would reserve all GPU
# memory, which jax needs.
tf.config.set_visible_devices([], "GPU")

# A record takes a kilobyte or two, so this bounds memory to a few gigabytes.
_MAX_IN_MEMORY = 1_000_000
# Number of records that one call into Python reads, to amortize its cost.
RECORDS_PER_LOOKUP = 64
_ROUNDS = 6
# Fewer bits would give too few distinct permutations of tiny sources.
_MIN_HALF_BITS = 3


@runtime_checkable
class Records(Protocol):
  """The records of one split.

  They may have a method `problems(lengths)`, which describes records that do
  not fit the lengths of features, or cannot be used.
  """

  @property
  def spec(self) -> Mapping[str, Any]:
    """Features of a record; only their first axis may be None."""
    ...

  def __len__(self) -> int: ...

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Returns each feature's values in these records: scalars or arrays."""
    ...


@runtime_checkable
class GrowingRecords(Records, Protocol):
  """Records whose number grows while they are read, such as a log's.

  They choose the record for a position themselves, so a resumed stream does not
  repeat earlier choices. They may be empty at first, and wait.
  """

  def choose(self, hashes: UInt64[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the records for positions with these hashes."""
    ...


class InMemoryRecords:
  """The records of a source without random access, read once into memory.

  Whenever a run is resumed, the source must have the same records in the same
  order, as files do.

  Raises:
    TaskError: The source is a Python function, has too many records, or has
      features that are not arrays.
  """

  def __init__(self, source: seqio.DataSource, split: str):
    if isinstance(source, seqio.FunctionDataSource):
      raise TaskError(
        f"{source} cannot be resumed: nothing says that its function gives "
        "the same records again; read files (seqio.TextLineDataSource, "
        "TFExampleDataSource), or extend inputs.sources.RandomAccessSource"
      )
    dataset = source.get_dataset(split=split, shuffle=False)
    if not isinstance(dataset.element_spec, dict):
      # seqio.TextLineDataSource yields bare strings, which need a name.
      dataset = dataset.map(lambda line: {"text": line})
    self.spec = dataset.element_spec
    for path, spec in jax.tree.leaves_with_path(self.spec):
      if not isinstance(spec, tf.TensorSpec) or None in spec.shape[1:]:
        raise TaskError(
          f"feature {jax.tree_util.keystr(path)} of {source} is {spec}; want "
          "an array of which only the first axis varies in length"
        )
    records = dataset.take(_MAX_IN_MEMORY + 1)
    self._records = list(records.as_numpy_iterator())
    if len(self._records) > _MAX_IN_MEMORY:
      raise TaskError(
        f"{source} gives more than {_MAX_IN_MEMORY:,} records in split "
        f"{split!r}, and only so many of a source without random access are "
        "kept in memory; build a corpus of its texts (realm_jax.build_corpus), "
        "or extend inputs.sources.RandomAccessSource"
      )

  def __len__(self) -> int:
    return len(self._records)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Returns records by their index in the source."""
    records = [self._records[index] for index in indices.tolist()]
    return jax.tree.map(lambda *values: list(values), *records)


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
    **unused: Any,
  ) -> tf.data.Dataset:
    """Returns one epoch, for seqio.

    seqio may repeat this epoch with the same seeds; in `ExampleStream` every
    epoch has its own order and seeds.
    """
    del unused
    if seed is None:
      seed = random.SystemRandom().getrandbits(31) if shuffle else 0
    shards = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    reader = RecordReader(self, split, seed=seed, shuffle=shuffle)
    return reader.records_at(
      tf.data.Dataset.range(shards.index, reader.num_records, shards.num_shards)
    )


class RunFilesSource(RandomAccessSource):
  """A source of the run's `question_files`.

  Its splits are those of the files, unless the constructor gets others.
  """

  def __init__(self, splits: Sequence[str] = ()):
    super().__init__(splits=splits, caching_permitted=False)

  def __str__(self) -> str:
    return f"the files {dict(current_context().question_files)}"

  @property
  def splits(self) -> Sequence[str]:
    return self._splits or tuple(current_context().question_files)


def _mix(words: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
  """Scatters all bits, as the finaliser of splitmix64 (Steele et al. 2014)."""
  words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return words ^ (words >> np.uint64(31))


def hashes(
  numbers: Int[np.ndarray, "n"], *, seed: int
) -> UInt64[np.ndarray, "n"]:
  """Returns a hash of the seed and of each number."""
  seed_hash = _mix(np.array([seed % 2**64], np.uint64))
  return _mix(seed_hash + numbers.astype(np.uint64))


def _permute(
  values: UInt64[np.ndarray, "n"], keys: UInt64[np.ndarray, "n"], size: int
) -> UInt64[np.ndarray, "n"]:
  """Maps each value below `size` by the permutation for its key."""
  half = np.uint64(
    max(_MIN_HALF_BITS, (max(size - 1, 1).bit_length() + 1) // 2)
  )
  mask = (np.uint64(1) << half) - np.uint64(1)
  values = values.copy()
  walking = np.arange(len(values))
  # The network permutes 0 … 4^half − 1. A value outside of 0 … size − 1 is
  # mapped again until it is inside, which keeps the map one to one.
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
  keys = hashes(epochs, seed=seed)
  return _permute(within.astype(np.uint64), keys, size).astype(np.int64)


class RecordReader:
  """Reads the records of one split at given positions of an endless stream.

  An epoch has `num_records` positions. `error` is the exception of a lookup, as
  tf.data itself keeps only the text.

  Raises:
    TaskError: The source has no record, or cannot be read into memory.
  """

  def __init__(
    self, source: seqio.DataSource, split: str, *, seed: int, shuffle: bool
  ):
    self._records: Records = (
      source.open(split)
      if isinstance(source, RandomAccessSource)
      else InMemoryRecords(source, split)
    )
    self.num_records = len(self._records)
    grows = isinstance(self._records, GrowingRecords)
    if not (self.num_records or grows):
      raise TaskError(f"{source} has no record in split {split!r}")
    self._seed, self._shuffle = seed, shuffle
    self._spec = dict(self._records.spec)
    self._leaves, self._structure = jax.tree.flatten(self._spec)
    self.error: Exception | None = None

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Describes records that will be truncated, or cannot be used."""
    problems = getattr(self._records, "problems", None)
    return problems(lengths) if problems else ()

  # There is no control flow to convert, and looking for it takes a second.
  @tf.autograph.experimental.do_not_convert
  def records_at(self, positions: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the records at these positions, a data set of int64."""
    types = [spec.dtype for spec in self._leaves]
    types += [tf.int64] * sum(map(_is_ragged, self._leaves))

    def read(batch: tf.Tensor) -> tf.data.Dataset:
      columns = tf.numpy_function(self._read, [batch], types, stateful=False)
      for spec, column in zip(self._leaves, columns, strict=False):
        column.set_shape([None, *spec.shape])
      for lengths in columns[len(self._leaves) :]:
        lengths.set_shape([None])
      # `unbatch` crashes the process if all values of a column are empty.
      return tf.data.Dataset.from_tensor_slices(
        (batch, _record_seeds(self._seed, batch), *columns)
      )

    return positions.batch(RECORDS_PER_LOOKUP).flat_map(read).map(self._record)

  def _read(self, positions: Int[np.ndarray, " n"]) -> list[np.ndarray]:
    """Returns each column, padded, and then the lengths of ragged columns."""
    try:
      if isinstance(self._records, GrowingRecords):
        indices = self._records.choose(hashes(positions, seed=self._seed))
      else:
        indices = record_indices(
          positions,
          size=self.num_records,
          seed=self._seed,
          shuffle=self._shuffle,
        )
      batch = self._records.lookup(indices)
      columns = self._structure.flatten_up_to({n: batch[n] for n in self._spec})
      joined, lengths = [], []
      for spec, column in zip(self._leaves, columns, strict=True):
        if _is_ragged(spec):
          lengths.append(np.array([*map(len, column)], np.int64))
        joined.append(padded(column, spec.shape, spec.dtype.as_numpy_dtype))
      return joined + lengths
    except Exception as error:
      self.error = error
      raise

  def _record(
    self, position: tf.Tensor, seed: tf.Tensor, *columns: tf.Tensor
  ) -> dict[str, Any]:
    """Returns one of the records that `_read` returned."""
    lengths = iter(columns[len(self._leaves) :])
    values = [
      value[: next(lengths)] if _is_ragged(spec) else value
      for spec, value in zip(self._leaves, columns, strict=False)
    ]
    record = jax.tree.unflatten(self._structure, values)
    features = {name: record[name] for name in self._spec}
    return {"position": position, "seed": seed, **features}


def _is_ragged(spec: tf.TensorSpec) -> bool:
  """Returns whether the first axis of a feature varies in length."""
  return bool(spec.shape.rank) and spec.shape[0] is None


def _record_seeds(
  seed: int, positions: Int[tf.Tensor, " n"]
) -> Int[tf.Tensor, "n 2"]:
  """Returns the seeds, int32[2], of the records at positions.

  A seed has the two words of the position, the upper one mixed with the run's
  seed, so that all positions of a run have different seeds.
  """
  run = np.array([0, seed % 2**32], np.uint32).view(np.int32)
  return tf.bitwise.bitwise_xor(tf.bitcast(positions, tf.int32), run)
