"""One thread computes; what waits is bounded, and may be taken back."""

import threading
from concurrent.futures import CancelledError

import pytest

from realm_jax.serving.errors import BusyError
from realm_jax.serving.worker import ModelWorker


@pytest.fixture
def gate():
  opened = threading.Event()
  yield opened
  opened.set()


def _occupied(worker, gate):
  """Returns the future of what occupies the thread until the gate opens."""
  begun = threading.Event()
  future = worker.submit(lambda: (begun.set(), gate.wait()))
  assert begun.wait(10)
  return future


def test_one_thread_computes_in_order():
  worker = ModelWorker(100)
  threads, done = set(), []

  def compute(number):
    threads.add(threading.get_ident())
    done.append(number)
    return number * number

  futures = [worker.submit(lambda n=n: compute(n)) for n in range(50)]
  assert [f.result(10) for f in futures] == [n * n for n in range(50)]
  assert done == [*range(50)]
  assert len(threads) == 1 and threading.get_ident() not in threads
  assert worker.close(10)


def test_an_error_is_the_futures_and_the_thread_goes_on():
  worker = ModelWorker(2)
  with pytest.raises(ZeroDivisionError):
    worker.submit(lambda: 1 / 0).result(10)
  assert worker.submit(lambda: 3).result(10) == 3
  assert worker.close(10)


def test_beyond_its_limit_it_refuses(gate):
  worker = ModelWorker(2)
  _occupied(worker, gate)
  waiting = [worker.submit(lambda: "done") for _ in range(2)]
  with pytest.raises(BusyError, match="2 requests wait already"):
    worker.submit(lambda: "never")
  gate.set()
  assert [future.result(10) for future in waiting] == ["done", "done"]
  assert worker.close(10)


def test_what_is_taken_back_is_not_computed(gate):
  worker = ModelWorker(5)
  _occupied(worker, gate)
  computed = []
  future = worker.submit(lambda: computed.append("cancelled"))
  assert future.cancel()
  last = worker.submit(lambda: computed.append("last"))
  gate.set()
  last.result(10)
  assert computed == ["last"]
  assert worker.close(10)


def test_to_close_drops_what_waits(gate):
  worker = ModelWorker(5)
  running = _occupied(worker, gate)
  waiting = worker.submit(lambda: "dropped")
  assert not worker.close(0.05)
  gate.set()
  running.result(10)
  with pytest.raises(CancelledError):
    waiting.result(10)
  assert worker.close(10)
