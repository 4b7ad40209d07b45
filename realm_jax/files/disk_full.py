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
  """Turns the system's error for a full disk into one that says what to do.

  Args:
    target: Path that the block writes, for the message. Where it is on an
      object store, the full disk is that of a temporary directory.
    advice: Sentence that says what the user can do.

  Raises:
    DiskFullError: The disk or the quota has no space left.
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
