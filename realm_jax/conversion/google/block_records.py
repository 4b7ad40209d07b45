"""Texts of blocks: a `block_records.npy`, or TFRecords such as `blocks.tfr`."""

from collections.abc import Callable, Iterator
from typing import IO, TypeAlias

import numpy as np
import tensorflow as tf
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.pickled_bytes import WANTED, BytesPickle

# TensorFlow must leave the GPUs to jax.
tf.config.set_visible_devices([], "GPU")

_RECORDS_PER_STEP = 1024
_BUFFER_BYTES = 1 << 24
_Header: TypeAlias = tuple[tuple[int, ...], bool, np.dtype]
_HEADER_READERS: dict[tuple[int, int], Callable[[IO[bytes]], _Header]] = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class BlockRecords:
  """The records of a `block_records.npy`: sized, and iterable many times.

  The file is a pickle, which is read and not run, anew at each pass. Whatever
  its size, memory holds one buffer, one record, and eight bytes for each record
  read so far. A million records of 600 bytes took 3.4 s of one CPU core.
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)
    with self._path.open("rb") as file:
      self._count = _read_header(file, self._path)
      self._start = file.tell()

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[bytes]:
    """Yields the records in order, and checks what follows the last one."""
    with self._path.open("rb") as file:
      yield from BytesPickle(
        file, where=str(self._path), start=self._start, count=self._count
      ).records()


def _read_header(file: IO[bytes], path: epath.Path) -> int:
  """Reads the number of records, after which the pickle begins."""
  try:
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
      raise ValueError(f"its .npy version is {version}")
    shape, _, dtype = _HEADER_READERS[version](file)
  except OSError:
    raise
  except Exception as error:  # A damaged header can raise anything.
    raise ConversionError(
      f"{path} is no .npy file, or its header is damaged ({error}); copy "
      "block_records.npy again"
    ) from error
  if dtype != np.dtype(object) or len(shape) != 1 or shape[0] < 0:
    raise ConversionError(
      f"{path} is an array of {dtype} of shape {list(shape)}; {WANTED}, in one "
      "dimension"
    )
  return shape[0]


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
