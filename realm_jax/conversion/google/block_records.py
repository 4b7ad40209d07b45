"""Byte strings of a `block_records.npy`, read without unpickling."""

from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.bytes_pickle import WANTED, BytesPickle

_HEADER_READERS: dict[tuple[int, int], Callable[[Any], Any]] = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class BlockRecords:
  """The records of a `block_records.npy`: sized, and read anew at each pass.

  Memory stays flat, whatever the size of the file: one buffer, one record, and
  eight bytes for each record seen.

  Args:
    path: local or on an object store.

  Raises:
    ConversionError: the file is no array of objects in one dimension.
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)
    with self._path.open("rb") as file:
      self._count = _read_header(file, self._path)
      self._start = file.tell()

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[bytes]:
    """The records in order.

    What follows the last one is checked too, before the iterator ends.

    Raises:
      ConversionError: the file holds anything but byte strings, or is cut.
    """
    with self._path.open("rb") as file:
      yield from BytesPickle(
        file, where=str(self._path), start=self._start, count=self._count
      ).records()


def _read_header(file: IO[bytes], path: epath.Path) -> int:
  """The number of records; the pickle follows in the file."""
  try:
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
      raise ValueError(f"its .npy version is {version}")
    shape, _, dtype = _HEADER_READERS[version](file)
  except OSError:
    raise
  except Exception as error:  # Of a damaged header, whatever it leads to.
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
