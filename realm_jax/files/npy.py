"""Arrays as `.npy` files, on disks that may be full."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike


def save(path: Path, array: np.ndarray) -> None:
  """Writes an array; unlike numpy's own, it raises if the disk is full."""
  header = np.lib.format.header_data_from_array_1_0(array)
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.ascontiguousarray(array).view(np.uint8).data)


def create_mapped(
  path: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap:
  """Creates a memory-mapped array to write to, with its disk space allocated.

  If the disk is full, this raises `OSError`, where writing to a file that is
  mapped without space would end the process with a signal.
  """
  # numpy creates the file as one hole, without disk space.
  array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
  with path.open("r+b") as file:
    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
  return array
