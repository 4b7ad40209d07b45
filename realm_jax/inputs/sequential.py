"""Records of sources that are read from the front: lines, TFRecords, TFDS.

A position is the epoch in its upper bits and the place in the epoch in its
lower 40, so that resuming rereads at most one epoch, and before the
preprocessors, which are what costs.
"""

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.inputs.context import TaskError
from realm_jax.inputs.sources import record_seed

_EPOCH_STRIDE = 1 << 40


class SequentialReader:
  """Reads one split in the order of its files, shuffled through a buffer."""

  # A lookup of ours cannot fail; see RecordReader.
  error = None

  def __init__(
    self,
    source: seqio.DataSource,
    split: str,
    *,
    seed: int,
    shuffle_buffer_size: int | None,
  ):
    """Prepares to read; raises `TaskError` where that cannot be resumed.

    Args:
      source: the same data, in the same order, whenever it is read.
      split: of the source.
      seed: of the order and of what preprocessors draw.
      shuffle_buffer_size: None keeps the order of the files.
    """
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
    """The records from position `start` on, to the end of the first epoch.

    Args:
      start: a position, 0 for the first.
      repeat: whether to go on with the epochs after it, without end.
    """
    first_epoch, first_place = divmod(start, _EPOCH_STRIDE)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
      records = self._records
      if self._buffer:
        order = tf.random.stateless_uniform(
          (),
          [self._seed % 2**31, epoch],
          minval=None,
          maxval=None,
          dtype=tf.int64,
        )
        records = records.shuffle(
          self._buffer, seed=order, reshuffle_each_iteration=False
        )
      skipped = tf.where(epoch == first_epoch, np.int64(first_place), 0)
      return (
        records.enumerate()
        .skip(skipped)
        .map(lambda place, record: (epoch * _EPOCH_STRIDE + place, record))
      )

    def with_position(position, record):
      seed = record_seed(self._seed, position)
      return {**record, "position": position, "seed": seed}

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if repeat else 1)
    return epochs.flat_map(one_epoch).map(with_position)
