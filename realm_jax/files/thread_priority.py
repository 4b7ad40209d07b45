"""Background work at a low priority, which leaves the cores to training."""

import os
import sys
import threading

# At this niceness a thread gets about a tenth of a normal thread's share: steps
# hardly slow down, and the work still ends where they use every core.
_NICENESS = 10


def lower_thread_priority() -> None:
  """Lowers the priority of the calling thread and of threads it will start.

  It cannot be raised again, so only a thread made for the work should call
  this. It has an effect on Linux alone: elsewhere priorities are per process.
  """
  if sys.platform == "linux":
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, _NICENESS))
