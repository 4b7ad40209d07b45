"""Work that gives way: in threads of a lower priority, which stays theirs."""

import os
import sys
import threading

import pytest

from realm_jax.indexes.background import in_background

pytestmark = pytest.mark.skipif(
  sys.platform != "linux", reason="threads have no priorities of their own"
)


def _priority() -> int:
  return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_and_its_threads_give_way_and_nothing_else_does():
  before = _priority()

  def work():
    found = [_priority()]
    thread = threading.Thread(target=lambda: found.append(_priority()))
    thread.start()
    thread.join()
    return found

  lower = max(before, 10)
  assert in_background(work) == [lower, lower]
  assert _priority() == before


def test_what_the_work_raises_is_raised():
  def work():
    raise ValueError("no such file")

  with pytest.raises(ValueError, match="no such file"):
    in_background(work)
