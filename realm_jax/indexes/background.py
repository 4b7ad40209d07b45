"""Work that gives way to whatever else the machine does."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# A tenth of the share of what is not nice: little enough that steps hardly feel
# it, and enough to come to an end where they take every core.
_NICENESS = 10

T = TypeVar("T")


def give_way() -> None:
  """Lowers the priority of this thread, and of all that it will start.

  It cannot be raised again, so a thread of the work's own should call it. On
  Linux alone: elsewhere priorities are of processes.
  """
  if sys.platform == "linux":
    thread = threading.get_native_id()
    now = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, max(now, _NICENESS))


def in_background(work: Callable[[], T]) -> T:
  """Waits for work that gives way; returns, or raises, what it does."""
  with ThreadPoolExecutor(1, initializer=give_way) as thread:
    return thread.submit(work).result()
