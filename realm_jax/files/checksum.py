"""SHA-256 checksums of files, read in pieces."""

import hashlib
import mmap
import os

from etils import epath

from realm_jax.files.object_store.remote import is_remote

# Python's lock is taken once for each piece. Large pieces keep a thread of low
# priority from waiting for it often.
_PIECE_BYTES = 1 << 23


def sha256_of(path: epath.PathLike, *, drop_pages: bool = False) -> str:
  """Returns the SHA-256 checksum of a file, in hexadecimal.

  With `drop_pages`, the system's page cache gives up a local file as it is
  read, as where gigabytes are verified beside a running trainer.
  """
  digest = hashlib.sha256()
  if is_remote(path):
    with epath.Path(path).open("rb") as file:
      while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
  # The buffer has its own pages, so that the allocator's heap, which the
  # training step uses, does not grow.
  with (
    open(path, "rb", buffering=0) as file,
    mmap.mmap(-1, _PIECE_BYTES) as buffer,
  ):
    while count := file.readinto(buffer):
      with memoryview(buffer)[:count] as view:
        digest.update(view)
      if drop_pages and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
  return digest.hexdigest()
