"""What processes exchange, over a store that threads of one process share."""

import collections
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from realm_jax.partitioning import agreement as agreement_module
from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.processes import ProcessesError

_COUNT = 3
_CHARACTERS_PER_PIECE = 16


class Store:
  """The key-value store of jax's coordination service."""

  def __init__(self):
    self._changed = threading.Condition()
    self.values, self.longest_piece = {}, 0

  def key_value_set(self, key, value, allow_overwrite=False):
    with self._changed:
      assert allow_overwrite or key not in self.values
      self.values[key] = value
      if "/gathered/" in key:
        self.longest_piece = max(self.longest_piece, len(value))
      self._changed.notify_all()

  def blocking_key_value_get(self, key, timeout):
    with self._changed:
      if not self._changed.wait_for(lambda: key in self.values, timeout / 1e3):
        raise RuntimeError("DEADLINE_EXCEEDED: no such key")
      return self.values[key]

  def key_value_try_get(self, key):
    with self._changed:
      if key not in self.values:
        raise RuntimeError("NOT_FOUND: no such key")
      return self.values[key]

  def key_value_delete(self, folder):
    with self._changed:
      for key in list(self.values):
        if key == folder or key.startswith(f"{folder}/"):
          del self.values[key]


@pytest.fixture
def store(monkeypatch):
  """The store, with short pieces and little patience."""
  monkeypatch.setattr(agreement_module, "_POLL_SECONDS", 0.05)
  name = "_CHARACTERS_PER_PIECE"
  monkeypatch.setattr(agreement_module, name, _CHARACTERS_PER_PIECE)
  store = Store()
  monkeypatch.setattr(processes, "store", lambda: store)
  monkeypatch.setattr(jax, "process_count", lambda: _COUNT)
  return store


@pytest.fixture
def agreements(store, monkeypatch):
  """An agreement for each process."""
  opened = []
  for index in range(_COUNT):
    monkeypatch.setattr(agreement_module, "_opened", collections.Counter())
    monkeypatch.setattr(jax, "process_index", lambda index=index: index)
    opened.append(Agreement("test"))
  return opened


def _everywhere(agreements, function):
  """Calls a function of (agreement, index) as all processes do, at once."""
  with ThreadPoolExecutor(_COUNT) as threads:
    return list(threads.map(function, agreements, range(_COUNT)))


@pytest.mark.parametrize("length", [0, 1, 14, 15, 100])
def test_values_of_any_size_are_gathered_in_pieces(store, agreements, length):
  values = [{"text": "é" * (length + i), "n": [i, 0.1]} for i in range(_COUNT)]
  for _ in range(2):
    gathered = _everywhere(
      agreements, lambda each, i: each.gathered("values", values[i])
    )
    assert gathered == [values, [], []]
  assert store.longest_piece <= _CHARACTERS_PER_PIECE
  # Process 0 removes what it has read.
  assert not [key for key in store.values if "/gathered/" in key]


def test_gathering_and_deciding_find_that_they_are_out_of_step(agreements):
  def asks(agreement, index):
    if index == 1:
      return agreement.decide("end", None, lambda facts: None)
    return agreement.gathered("values", index)

  def error_of(agreement, index):
    try:
      return asks(agreement, index)
    except ProcessesError as error:
      # As a process that ends does.
      agreement._client.key_value_set(processes.FAILED, f"{index} 1", True)
      return str(error)

  errors = _everywhere(agreements, error_of)
  assert "out of step: ['end', 'pieces of values']" in errors[0]
  # Process 2, which waits for 0 as well, may have ended before 1 looks.
  assert re.search("process [02] has failed", errors[1])


def test_a_failed_process_is_noticed_without_waiting(store, agreements):
  for agreement in agreements:
    agreement.require_no_failure()
  store.key_value_set(processes.FAILED, "1 3")
  agreements[1].require_no_failure()
  for index in (0, 2):
    with pytest.raises(ProcessesError, match="process 1 has failed"):
      agreements[index].require_no_failure()


def test_a_lone_process_gathers_its_own_value():
  agreement = Agreement("lone")
  assert agreement.gathered("values", {1: "kept as it is"}) == [
    {1: "kept as it is"}
  ]
  agreement.require_no_failure()
