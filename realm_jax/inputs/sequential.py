"""Records of sources without random access: lines, TFRecords, TFDS.

Resuming counts the records of an epoch and reads at most one epoch again, both
before the preprocessors, which take most of the time.
"""

import functools
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.sources import record_seed


class SequentialReader:
  """Reads one split in the order of its files, shuffled through a buffer.

  The source must give the same records in the same order at each read. Without
  a buffer, they keep the order of the files.

  Raises:
    TaskError: The source cannot be resumed, or has no record.
  """

  # As in PositionReader; there are no lookups here: tf.data reads files.
  error: Exception | None = None

  def __init__(
    self,
    source: seqio.DataSource,
    split: str,
    *,
    seed: int,
    shuffle_buffer_size: int | None,
  ):
    if isinstance(source, seqio.FunctionDataSource):
      raise TaskError(
        f"{source} cannot be resumed: nothing says that its function gives "
        "the same records again; read files (seqio.TextLineDataSource, "
        "TFExampleDataSource), or extend inputs.sources.RandomAccessSource"
      )
    self._records = source.get_dataset(split=split, shuffle=False)
    if not any(True for _ in self._records.take(1)):
      raise TaskError(f"{source} has no record in split {split!r}")
    self._seed = seed
    self._buffer = shuffle_buffer_size

  @functools.cached_property
  def _num_records(self) -> int:
    """The number of records of an epoch, for which all are read."""
    zero = tf.constant(0, tf.int64)
    return int(self._records.reduce(zero, lambda count, record: count + 1))

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Nothing is known of its records before they are read."""
    del lengths
    return ()

  def records(self, start: int, *, repeat: bool) -> tf.data.Dataset:
    """Returns the records from position `start` on, of one epoch or of all."""
    # A run that begins has not to wait for the count.
    epoch, num_skipped = divmod(start, self._num_records) if start else (0, 0)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
      if not self._buffer:
        return self._records
      seed = [self._seed % 2**31, epoch]
      order = tf.random.stateless_uniform((), seed, minval=None, dtype=tf.int64)
      return self._records.shuffle(
        self._buffer, seed=order, reshuffle_each_iteration=False
      )

    def with_position(
      position: tf.Tensor, record: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
      seed = record_seed(self._seed, position)
      return {**record, "position": position, "seed": seed}

    epochs = tf.data.Dataset.range(epoch, tf.int64.max if repeat else 1)
    records = epochs.flat_map(one_epoch).skip(num_skipped)
    return records.enumerate(start).map(with_position)
