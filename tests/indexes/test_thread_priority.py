"""Background work gets a lower priority, and its caller keeps its own."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from realm_jax.storage.staging import lower_thread_priority

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
  with ThreadPoolExecutor(1, initializer=lower_thread_priority) as background:
    assert background.submit(work).result() == [lower, lower]
  assert _priority() == before
