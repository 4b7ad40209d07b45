"""Texts of blocks as TFRecords, such as those of `blocks.tfr`."""

from collections.abc import Iterator

import tensorflow as tf
from etils import epath

from realm_jax.conversion.errors import ConversionError

# TensorFlow must leave the GPUs to jax.
tf.config.set_visible_devices([], "GPU")

_RECORDS_PER_STEP = 1024
_BUFFER_BYTES = 1 << 24


class TfRecords:
  """The raw records of a file, read from it at each pass in flat memory.

  The file is compressed if its name ends in `.gz`.
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)

  def __iter__(self) -> Iterator[bytes]:
    """Yields the records in order."""
    dataset = tf.data.TFRecordDataset(
      str(self._path),
      compression_type="GZIP" if self._path.suffix == ".gz" else "",
      buffer_size=_BUFFER_BYTES,
    ).batch(_RECORDS_PER_STEP)
    count = 0
    try:
      for batch in dataset.as_numpy_iterator():
        count += len(batch)
        yield from batch.tolist()
    except tf.errors.OpError as error:
      raise ConversionError(
        f"{self._path} cannot be read after {count} records "
        f"({error.message.splitlines()[0]}); want a whole file of TFRecords"
      ) from error
