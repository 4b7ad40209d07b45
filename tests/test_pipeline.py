"""Steps in this process, a builder beside them, SIGTERM, and what stands."""

import contextlib
import os
import signal
import threading
import time

import pytest

from realm_jax.pipeline import (
  Command,
  Step,
  StoppedError,
  call,
  run,
  run_all,
  running_beside,
)

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


def _wait_for(path):
  while not path.exists():
    time.sleep(0.01)


def test_a_builder_ends_with_its_step(tmp_path, builder):
  script, started, stopped = builder
  with running_beside(["-c", script], tmp_path / "run" / "log"):
    _wait_for(started)
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
    _wait_for(started)
    os.kill(os.getpid(), signal.SIGTERM)
  assert stop.value.exit_code == 143
  assert stopped.exists()


def test_sigterm_in_a_command_that_ends_well_stops_the_pipeline(monkeypatch):
  # An index builder, for one, returns when it is told to stop.
  @contextlib.contextmanager
  def configured(command):
    del command
    yield lambda: os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(Command, "configured", configured)
  with pytest.raises(StoppedError, match="stopped by SIGTERM in evaluate"):
    call(Command("evaluate", [], {}))


def test_what_has_its_figures_is_not_evaluated_again(tmp_path):
  # The model does not exist, so that a second evaluation would fail.
  command = Command(
    "evaluate",
    ["gin/experiments/demo/eval.gin"],
    {
      "MODEL_DIR": "none",
      "CORPUS_DIR": "none",
      "QUESTIONS": "none",
      "OUTPUT_DIR": str(tmp_path),
    },
  )
  step = Step(command, tmp_path)
  assert not step.is_finished()
  with pytest.raises(ValueError, match="none"):
    run(step)
  (tmp_path / "metrics.json").write_text('{"exact_match": 0.5}')
  run_all({"answers": step})
  assert step.figures() == {"exact_match": 0.5}


def test_a_command_is_printed_as_it_is_typed():
  command = Command(
    "train", ["a.gin"], {"MODEL_DIR": "a b", "PACK": True}, ("--once",)
  )
  assert str(command) == (
    "python -m realm_jax.train --once --gin_file=a.gin "
    """'--gin.MODEL_DIR="a b"' --gin.PACK=True"""
  )
