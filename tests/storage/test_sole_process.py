"""One process has a role in a directory, whatever happened before."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from realm_jax.storage import sole_process as module
from realm_jax.storage.sole_process import SoleProcessError, sole_process
from tests.processes.object_store import StoreFault

_HOLD = """
import sys, time
from realm_jax.storage import sole_process
sole_process.RENEWAL_SECONDS, sole_process.SETTLING_SECONDS = 0.1, 0.05
with sole_process.sole_process(sys.argv[1]):
  print("held", flush=True)
  time.sleep(600)
"""


@pytest.fixture(autouse=True)
def set_times(monkeypatch):
  """`set_times(lifetime)`; nobody takes a lease after the first lifetime."""

  def set_times(lifetime, renewal=0.1, settling=0.05):
    for name, seconds in (
      ("LIFETIME", lifetime),
      ("RENEWAL", renewal),
      ("SETTLING", settling),
    ):
      monkeypatch.setattr(module, f"{name}_SECONDS", seconds)

  set_times(300)
  return set_times


@pytest.fixture(params=["disk", "store"])
def directory(request, tmp_path) -> str:
  if request.param == "disk":
    return str(tmp_path)
  store = request.getfixturevalue("object_store")
  return store.path(f"sole/{tmp_path.name}")


@pytest.fixture
def holder(directory, command_environment):
  """Another process that holds `directory`."""
  with subprocess.Popen(
    [sys.executable, "-c", _HOLD, directory],
    stdout=subprocess.PIPE,
    text=True,
    env={**command_environment, **os.environ},
  ) as process:
    try:
      assert process.stdout.readline() == "held\n"
      yield process
    finally:
      process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(
  holder, directory
):
  # The refused one does not disturb the first.
  for _ in range(2):
    with (
      pytest.raises(SoleProcessError, match=f"process {holder.pid} on"),
      sole_process(directory),
    ):
      pass
  os.kill(holder.pid, signal.SIGKILL)
  holder.wait()
  # A process of this host that is gone is not waited for.
  started = time.monotonic()
  with sole_process(directory) as sole:
    sole.check()
  assert time.monotonic() - started < 60


class Elsewhere:
  """A lease in the store that a process of another host has written."""

  def __init__(self, store, name: str):
    self._store, self.name = store, f"{name}/trainer.lease"
    self.directory = store.path(name)

  def write(self, renewals: int = 0) -> None:
    lease = {
      "holder": "process 7 on far",
      "machine": "far",
      "process": os.getpid(),
      "started": "1",
      "token": "abc",
      "renewals": renewals,
    }
    self._store.write(self.name, json.dumps(lease).encode())

  @property
  def token(self) -> str:
    return json.loads(self._store.read(self.name))["token"]


@pytest.fixture
def elsewhere(object_store, tmp_path) -> Elsewhere:
  return Elsewhere(object_store, f"elsewhere/{tmp_path.name}")


def test_a_lease_that_does_not_change_for_a_lifetime_is_taken(
  elsewhere, set_times
):
  set_times(0.5)
  elsewhere.write()
  started = time.monotonic()
  with sole_process(elsewhere.directory) as sole:
    assert time.monotonic() - started >= 0.5
    assert elsewhere.token != "abc"
    sole.check()


def test_a_lease_that_is_renewed_is_another_hosts(elsewhere):
  elsewhere.write()
  renewal = threading.Timer(0.3, elsewhere.write, [1])
  renewal.start()
  with (
    pytest.raises(SoleProcessError, match="process 7 on far"),
    sole_process(elsewhere.directory),
  ):
    pass
  renewal.join()
  assert elsewhere.token == "abc"


# The second is as after it was suspended for long: nothing has renewed it.
@pytest.mark.parametrize("times", [(300,), (0.0, 600, 0)])
def test_a_process_whose_role_was_taken_meanwhile_ends(
  elsewhere, set_times, times
):
  set_times(*times)
  with (
    pytest.raises(SoleProcessError, match=r"another trainer now .*7 on far"),
    sole_process(elsewhere.directory) as sole,
  ):
    sole.check()
    elsewhere.write()
    sole.check()
    while times[0]:
      sole.check()
      time.sleep(0.05)
  # What the other holds is not released.
  assert elsewhere.token == "abc"


def test_a_store_that_refuses_for_a_while_or_loses_a_lease_ends_nothing(
  elsewhere, object_store, set_times
):
  set_times(0.5)
  with sole_process(elsewhere.directory) as sole:
    object_store.remove(elsewhere.name)
    while not object_store.names(elsewhere.name):
      time.sleep(0.05)
    object_store.inject(
      StoreFault("refuse", "trainer.lease|upload", times=5, status=403)
    )
    while object_store.happened() != [5]:
      sole.check()
      time.sleep(0.05)
    sole.check()


@pytest.mark.slow
def test_of_several_that_start_at_once_one_wins(elsewhere, set_times):
  set_times(300, renewal=60, settling=0.5)
  start, end = threading.Barrier(4), threading.Barrier(4)

  def contend() -> bool:
    start.wait()
    try:
      with sole_process(elsewhere.directory):
        end.wait()
        return True
    except SoleProcessError:
      end.wait()
      return False

  with ThreadPoolExecutor(4) as pool:
    won = [pool.submit(contend) for _ in range(4)]
    assert sorted(future.result() for future in won) == [0, 0, 0, 1]
