"""Processes that are killed at each of their calls into the file system."""

import os
import signal
import sys
from collections.abc import Callable

_WATCHED = frozenset({"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"})


def survives(work: Callable[[], object], *, calls: int) -> bool:
  """Returns whether a process that may make so many calls ends its work.

  The process kills itself with SIGKILL at the call after these. It is a fork of
  this one, so that Python starts once: where jax runs, as in a test's own
  process, it may hang.
  """
  child = os.fork()
  if not child:
    _allow(calls)
    work()
    os._exit(0)
  status = os.waitpid(child, 0)[1]
  if status not in (0, signal.SIGKILL):
    raise RuntimeError(f"the process ended with status {status}")
  return status == 0


def _allow(calls: int) -> None:
  """Lets this process make so many calls."""
  made = 0

  def audit(event: str, arguments: object) -> None:
    del arguments
    nonlocal made
    if event in _WATCHED:
      made += 1
      if made > calls:
        os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(audit)
