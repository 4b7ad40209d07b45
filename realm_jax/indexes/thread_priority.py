"""Background work at a low priority, which leaves the cores to training."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# At this niceness a thread gets about a tenth of a normal thread's share: steps
# hardly slow down, and the work still ends where they use every core.
_NICENESS = 10

T = TypeVar("T")


def lower_thread_priority() -> None:
  """Lowers the priority of the calling thread and of threads it will start.

  It cannot be raised again, so only a thread made for the work should call
  this. It has an effect on Linux alone: elsewhere priorities are per process.
  """
  if sys.platform == "linux":
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, _NICENESS))


def run_at_low_priority(work: Callable[[], T]) -> T:
  """Runs `work` in a thread of low priority; returns its result or raises."""
  with ThreadPoolExecutor(1, initializer=lower_thread_priority) as thread:
    return thread.submit(work).result()
