"""Vectors that are read from mapped files and not needed there again soon."""

import mmap
from typing import Any

import numpy as np


def let_go(part: np.ndarray) -> None:
  """Lets go of the pages of a file that were read for a slice of it.

  They can be read again, and until then take none of the process's memory.
  Anything but a read-only slice of a mapped file stays as it is.
  """
  owner: Any = part
  while isinstance(owner, np.ndarray):
    owner = owner.base
  # What is written in a private map would be lost.
  if isinstance(owner, mmap.mmap) and not part.flags.writeable:
    owner.madvise(mmap.MADV_DONTNEED)
