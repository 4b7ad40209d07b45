"""Memory-mapped files whose pages are read once."""

import mmap

import numpy as np


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
