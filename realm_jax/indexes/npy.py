"""Arrays as `.npy` files, where the disk may be full."""

import os
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, array: np.ndarray) -> None:
  """Writes an array; numpy's own would not say that the disk is full.

  Raises:
    OSError: the disk is full.
  """
  header = np.lib.format.header_data_from_array_1_0(array)
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.ascontiguousarray(array).view(np.uint8).data)


def create_mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
  """A new array to write to, which has its room on the disk.

  A memory-mapped write to a full disk would end the process with a signal
  instead of an error.

  Raises:
    OSError: the disk is full.
  """
  # numpy makes the file anew, and all of it a hole.
  array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
  with path.open("r+b") as file:
    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
  return array
