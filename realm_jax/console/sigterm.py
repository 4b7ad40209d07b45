"""SIGTERM as a wish that a loop grants at its next safe place."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
  """An event that SIGTERM sets, where signals can be handled."""
  stop = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
  try:
    yield stop
  finally:
    signal.signal(signal.SIGTERM, before)
