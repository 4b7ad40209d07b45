"""Steps in this process, a builder beside them, and SIGTERM."""

import os
import signal
import threading
import types

import pytest

from experiments.pipeline import Command, StoppedError, call, running_beside
from harness.jobs import wait_until

# Notes that it was told to stop, as an index builder may.
_BUILDER = """
import signal, sys, time
def stop(*_):
  open({stopped!r}, "w").write("stopped")
  sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open({started!r}, "w").write("")
time.sleep(60)
"""


@pytest.fixture
def builder(tmp_path):
  """A builder's script, and the files that say it was started and stopped."""
  started, stopped = tmp_path / "started", tmp_path / "stopped"
  script = _BUILDER.format(stopped=str(stopped), started=str(started))
  return script, started, stopped


def test_a_builder_ends_with_its_step(tmp_path, builder):
  script, started, stopped = builder
  with running_beside(["-c", script], tmp_path / "run" / "log"):
    wait_until(started.exists, what="a builder that runs")
  assert stopped.read_text() == "stopped"


def test_a_builder_that_fails_ends_the_step_with_the_end_of_its_log(tmp_path):
  seen = threading.Event()
  before = signal.signal(signal.SIGTERM, lambda *_: seen.set())
  try:
    with (
      pytest.raises(ValueError, match=r"index builder failed:\n.*\n?no disk"),
      running_beside(["-c", "raise SystemExit('no disk')"], tmp_path / "log"),
    ):
      # A trainer has a handler of its own, which ends it.
      signal.signal(signal.SIGTERM, lambda *_: seen.set())
      assert seen.wait(30)
      raise StoppedError("a trainer that saved")
  finally:
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_builder_and_the_pipeline(tmp_path, builder):
  script, started, stopped = builder
  with (
    pytest.raises(StoppedError, match="the same command continues") as stop,
    running_beside(["-c", script], tmp_path / "log"),
  ):
    wait_until(started.exists, what="a builder that runs")
    os.kill(os.getpid(), signal.SIGTERM)
  assert stop.value.exit_code == 143
  assert stopped.exists()


def test_sigterm_in_a_command_that_ends_well_stops_the_pipeline(monkeypatch):
  # An index builder, for one, returns when it is told to stop.
  def build(function):
    os.kill(os.getpid(), signal.SIGTERM)

  made = types.SimpleNamespace(build=build), None
  monkeypatch.setattr(Command, "configured", lambda command: made)
  with pytest.raises(StoppedError, match="stopped by SIGTERM in evaluate"):
    call(Command("evaluate", [], {}))
