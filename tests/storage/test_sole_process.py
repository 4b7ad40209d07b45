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

from harness.object_store import StoreFault
from realm_jax import supervisor
from realm_jax.storage import sole_process as module
from realm_jax.storage.access import StoreAccessError, StoreOutageError
from realm_jax.storage.sole_process import SoleProcessError, sole_process

_HOLD = """
import sys, time
from realm_jax.storage import sole_process
sole_process.RENEWAL_SECONDS = 0.1
with sole_process.sole_process(sys.argv[1]):
  print("held", flush=True)
  time.sleep(600)
"""
_WAKES = """
import sys
from realm_jax.storage import sole_process
sole_process.LIFETIME_SECONDS, sole_process.RENEWAL_SECONDS = 1.0, 600
with sole_process.sole_process(sys.argv[1]) as check:
  print("held", flush=True)
  sys.stdin.readline()
  try:
    check()
  except sole_process.SoleProcessError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def set_times(monkeypatch):
  """`set_times(lifetime)`; nobody takes a lease after the first lifetime."""

  def set_times(lifetime, renewal=0.1):
    monkeypatch.setattr(module, "LIFETIME_SECONDS", lifetime)
    monkeypatch.setattr(module, "RENEWAL_SECONDS", renewal)

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
    env={**command_environment, **os.environ, supervisor.VARIABLE: "of test"},
  ) as process:
    try:
      assert process.stdout.readline() == "held\n"
      yield process
    finally:
      process.kill()


def test_a_lease_is_written_on_the_condition_that_google_documents(
  object_store, tmp_path
):
  folder = object_store.path(f"sole/{tmp_path.name}")
  with object_store.counted() as requests, sole_process(folder):
    pass
  # https://cloud.google.com/storage/docs/json_api/v1/objects/insert
  written = [r for r in requests if r.startswith("POST")]
  assert all("ifGenerationMatch=" in r for r in written), written
  assert "ifGenerationMatch=0" in written[0]


def test_a_second_process_is_refused_until_the_first_is_killed(
  holder, directory, monkeypatch
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
  # It waits for nobody: its supervisor has seen the holder's end.
  monkeypatch.setenv(supervisor.VARIABLE, "of test")
  started = time.monotonic()
  with sole_process(directory) as check:
    check()
  assert time.monotonic() - started < 60


def test_a_process_that_was_suspended_ends_when_it_wakes(
  object_store, tmp_path, command_environment, set_times
):
  directory = object_store.path(f"zombie/{tmp_path.name}")
  set_times(1.0)
  with subprocess.Popen(
    [sys.executable, "-c", _WAKES, directory],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env={**command_environment, **os.environ},
  ) as zombie:
    assert zombie.stdout.readline() == "held\n"
    os.kill(zombie.pid, signal.SIGSTOP)
    with sole_process(directory) as check:
      os.kill(zombie.pid, signal.SIGCONT)
      printed, _ = zombie.communicate("check\n", timeout=60)
      assert "has another trainer now" in printed
      check()


class Elsewhere:
  """A lease in the store that a process of another host has written."""

  def __init__(self, store, name: str):
    self._store, self.name = store, f"{name}/trainer.lease"
    self.directory = store.path(name)

  def write(self, renewals: int = 0) -> None:
    lease = {"holder": "process 7 on far", "token": "abc", "renewals": renewals}
    self._store.write(self.name, json.dumps(lease).encode())

  @property
  def token(self) -> str:
    return json.loads(self._store.read(self.name))["token"]


@pytest.fixture
def elsewhere(object_store, tmp_path) -> Elsewhere:
  return Elsewhere(object_store, f"elsewhere/{tmp_path.name}")


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


def test_a_lease_that_nobody_renews_for_a_lifetime_is_free(
  elsewhere, set_times
):
  set_times(1.0)
  elsewhere.write()
  with sole_process(elsewhere.directory) as check:
    assert elsewhere.token != "abc"
    check()


def test_a_process_whose_role_was_taken_meanwhile_ends(elsewhere):
  with (
    pytest.raises(SoleProcessError, match=r"another trainer now .*7 on far"),
    sole_process(elsewhere.directory) as check,
  ):
    elsewhere.write()
    while True:
      check()
      time.sleep(0.05)
  # What the other holds is not released.
  assert elsewhere.token == "abc"


_AWAY = StoreFault("refuse", "trainer.lease", times=10**6, status=403)


def test_a_role_that_cannot_be_renewed_for_a_lifetime_ends_the_process(
  elsewhere, object_store, set_times, caplog
):
  with (
    pytest.raises(SoleProcessError, match="7 on far"),
    sole_process(elsewhere.directory) as check,
  ):
    object_store.inject(_AWAY)
    # What fails to renew the lease does not count as a renewal.
    while caplog.text.count("was not renewed") < 3:
      time.sleep(0.02)
    check()
    # No renewal comes between, as if this thread were the first to run again.
    set_times(0.1, renewal=600)
    with pytest.raises(StoreOutageError, match="could not be renewed for"):
      check()
    # Once the store answers, another process may have taken the role.
    object_store.inject()
    elsewhere.write()
    check()


def test_a_store_that_refuses_for_a_while_or_loses_a_lease_ends_nothing(
  elsewhere, object_store, set_times
):
  set_times(5.0)
  with sole_process(elsewhere.directory) as check:
    object_store.remove(elsewhere.name)
    while not object_store.names(elsewhere.name):
      time.sleep(0.05)
    object_store.inject(
      StoreFault("refuse", "trainer.lease", times=5, status=403)
    )
    while object_store.happened() != [5]:
      check()
      time.sleep(0.05)
    # The answer is lost, and the lease is this process's nevertheless.
    object_store.inject(StoreFault("lose answer", "trainer.lease", times=3))
    while object_store.happened() != [3]:
      time.sleep(0.05)
    check()


def test_a_store_without_preconditions_is_refused():
  with (
    pytest.raises(StoreAccessError, match="no preconditions"),
    sole_process("s3://bucket/run"),
  ):
    pass


@pytest.mark.slow
def test_of_several_that_start_at_once_one_wins(elsewhere, set_times):
  set_times(300, renewal=2.0)
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
