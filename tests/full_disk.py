"""A disk that is full for a while, for tests in this process.

The kernel refuses to let any file grow beyond a limit, as a full disk does,
whoever asks: only its error has another number.
"""

import contextlib
import resource
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def full_disk(max_bytes: int = 2048) -> Iterator[Callable[[], None]]:
  """Yields a function that frees space again, as the end of the block does."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)

  def free() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)

  resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
  try:
    yield free
  finally:
    free()
