"""Records of sources without random access: lines, TFRecords, TFDS.

A position has the epoch in its upper bits and the record's number in the epoch
in its lower 40. Resuming reads at most one epoch again, before the
preprocessors, which take most of the time.
"""

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.inputs.context import TaskError
from realm_jax.inputs.sources import record_seed

_EPOCH_STRIDE = 1 << 40


class SequentialReader:
  """Reads one split in the order of its files, shuffled through a buffer.

  The source must give the same records in the same order at each read. Without
  a buffer, they keep the order of the files.

  Raises:
    TaskError: The source cannot be resumed, or has no record.
  """

  # As in RecordReader; there are no lookups here, since tf.data reads files.
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

  def records(self, start: int, *, repeat: bool) -> tf.data.Dataset:
    """Returns the records from position `start` on, of one epoch or of all."""
    first_epoch, num_skipped = divmod(start, _EPOCH_STRIDE)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
      records = self._records
      if self._buffer:
        seed = [self._seed % 2**31, epoch]
        order = tf.random.stateless_uniform(
          (), seed, minval=None, dtype=tf.int64
        )
        records = records.shuffle(
          self._buffer, seed=order, reshuffle_each_iteration=False
        )
      skipped = tf.where(epoch == first_epoch, np.int64(num_skipped), 0)
      return (
        records.enumerate()
        .skip(skipped)
        .map(lambda number, record: (epoch * _EPOCH_STRIDE + number, record))
      )

    def with_position(
      position: tf.Tensor, record: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
      seed = record_seed(self._seed, position)
      return {**record, "position": position, "seed": seed}

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if repeat else 1)
    return epochs.flat_map(one_epoch).map(with_position)
