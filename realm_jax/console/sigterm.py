"""A SIGTERM flag that loops poll at step boundaries."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
  """Yields an event that SIGTERM sets during the `with` block.

  Only the main thread can handle signals. In any other the event stays unset.
  """
  stop = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
  try:
    yield stop
  finally:
    signal.signal(signal.SIGTERM, before)
