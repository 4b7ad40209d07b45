"""Steps in this process, a builder beside them, and SIGTERM."""

import json
import os
import signal
import threading
import types

import pytest

from experiments import pipeline
from experiments.pipeline import (
  Command,
  Step,
  StoppedError,
  call,
  running_beside,
)
from harness.jobs import wait_until
from tests.json_lines import write_lines

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
      pytest.raises(ValueError, match=r"log failed:\n.*\n?no disk"),
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

  configured = types.SimpleNamespace(build=build), None
  monkeypatch.setattr(Command, "configured", lambda command: configured)
  with pytest.raises(StoppedError, match="stopped by SIGTERM in evaluate"):
    call(Command("evaluate", [], {}))


def test_cpu_seconds_of_a_resumed_run_are_without_its_compilations(
  tmp_path, monkeypatch
):
  step = Step(Command("train", [], {}), tmp_path)
  # Each process computes for 2 s, and compiles for 4 or for 3.
  clock, compiled = iter([0, 6, 0, 5]), iter([4, 7])

  def run(step):
    row = {"step": 1, "run_seconds": {"compile": next(compiled)}}
    write_lines(step.folder / "metrics.jsonl", [row])
    raise StoppedError("stopped")

  monkeypatch.setattr(Step, "is_finished", lambda step: False)
  monkeypatch.setattr(pipeline, "run", run)
  monkeypatch.setattr(
    pipeline, "time", types.SimpleNamespace(process_time=lambda: next(clock))
  )
  for seconds in (2, 4):
    with pytest.raises(StoppedError):
      pipeline.run_in_cpu_seconds(step)
    assert json.loads((tmp_path / "cpu_seconds.json").read_text()) == seconds
