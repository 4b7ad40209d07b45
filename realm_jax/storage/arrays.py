"""Arrays in `.npy` files, on disks that may be full."""

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike


def save_array(path: Path, array: np.ndarray) -> None:
  """Writes a `.npy` file.

  On a full disk this raises the system's error, where `np.save` raises one
  without a code.
  """
  header = np.lib.format.header_data_from_array_1_0(array)
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.ascontiguousarray(array).view(np.uint8).data)


def create_mapped_array(
  path: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap:
  """Creates a memory-mapped `.npy` file with its disk space allocated.

  If the disk is full, this raises `OSError`, where writing to a file that is
  mapped without space would end the process with a signal.
  """
  # numpy creates the file as one hole, without disk space.
  array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
  with path.open("r+b") as file:
    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
  return array


def drop_pages(part: np.ndarray) -> None:
  """Frees the memory that holds the pages of a slice of a mapped file.

  The next access reads them from the file again. Arrays other than read-only
  slices of a mapped file are left alone.
  """
  owner: object = part
  while isinstance(owner, np.ndarray):
    owner = owner.base
  # Dropping the pages of a writable private map would lose what was written.
  if isinstance(owner, mmap.mmap) and not part.flags.writeable:
    owner.madvise(mmap.MADV_DONTNEED)
