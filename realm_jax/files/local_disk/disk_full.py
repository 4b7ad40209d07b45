"""Full disks, explained."""

import contextlib
import errno
from collections.abc import Iterator

from etils import epath

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(ValueError):
  """A disk or a quota that has no space left for what is being written."""


@contextlib.contextmanager
def explain_full_disk(
  target: epath.PathLike,
  *,
  advice: str = "free some space, or name another directory",
) -> Iterator[None]:
  """Turns the system's error for a full disk or quota into `DiskFullError`.

  The message names `target`, which the block writes. Where that is on an object
  store, the full disk is the one of a temporary directory.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _NO_SPACE:
      raise
    raise DiskFullError(
      f"the disk of {error.filename or target} is full ({error.strerror}), so "
      f"{target} was not written: {advice}"
    ) from error
