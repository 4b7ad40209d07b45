"""Background work gets a lower priority, and its caller keeps its own."""

import os
import sys
import threading

import pytest

from realm_jax.indexes.thread_priority import run_at_low_priority

pytestmark = pytest.mark.skipif(
  sys.platform != "linux", reason="threads have no priorities of their own"
)


def _priority() -> int:
  return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_and_its_threads_get_a_lower_priority_and_nothing_else():
  before = _priority()

  def work():
    found = [_priority()]
    thread = threading.Thread(target=lambda: found.append(_priority()))
    thread.start()
    thread.join()
    return found

  lower = max(before, 10)
  assert run_at_low_priority(work) == [lower, lower]
  assert _priority() == before


def test_an_exception_of_the_work_is_raised():
  def work():
    raise ValueError("no such file")

  with pytest.raises(ValueError, match="no such file"):
    run_at_low_priority(work)
