"""SIGTERM sets a flag instead of ending the process."""

import os
import signal
import threading

from realm_jax.console.sigterm import stop_on_sigterm


def test_sigterm_sets_the_flag_and_the_old_handler_returns():
  before = signal.getsignal(signal.SIGTERM)
  with stop_on_sigterm() as stop:
    assert not stop.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(5.0)
  assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_get_a_flag_and_leave_the_handler_alone():
  before = signal.getsignal(signal.SIGTERM)
  seen = []

  def enter() -> None:
    with stop_on_sigterm() as stop:
      seen.append((stop.is_set(), signal.getsignal(signal.SIGTERM)))

  thread = threading.Thread(target=enter)
  thread.start()
  thread.join()
  assert seen == [(False, before)]
