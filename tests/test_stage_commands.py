"""Commands as processes: their ends, failures, and SIGTERM."""

import os
import signal
import sys
import threading
import time

import pytest

from realm_jax.stage_commands import (
  StageCommand,
  StoppedError,
  run_to_end,
  running_beside,
)

# Saves its work when it is told to stop, as a trainer does.
_TRAINER = """
import signal, sys, time
def stop(*_):
  open({saved!r}, "w").write("saved")
  sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open({started!r}, "w").write("")
time.sleep(60)
"""


class Script(StageCommand):
  """A script instead of an entry point."""

  @property
  def argv(self):
    return [sys.executable, "-c", self.module]


def _script(text):
  return Script(text, [], {})


def _term_when(path):
  """Sends SIGTERM to this process once a file exists."""

  def send():
    while not path.exists():
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=send)
  thread.start()
  return thread


def test_a_failure_shows_the_end_of_the_log(tmp_path):
  log = tmp_path / "run" / "train.log"
  run_to_end(_script("print('first')"), log)
  with pytest.raises(ValueError, match=r"ended with 3:\nfirst\nwhy\n"):
    run_to_end(_script("print('why'); raise SystemExit(3)"), log)


def test_sigterm_reaches_the_command_which_may_save(tmp_path):
  saved, started = tmp_path / "saved", tmp_path / "started"
  script = _TRAINER.format(saved=str(saved), started=str(started))
  thread = _term_when(started)
  with pytest.raises(StoppedError, match="stopped in "):
    run_to_end(_script(script), tmp_path / "train.log")
  thread.join()
  assert saved.read_text() == "saved"


def test_a_sidecar_ends_with_the_run_and_a_run_with_its_sidecar(tmp_path):
  saved, started = tmp_path / "saved", tmp_path / "started"
  script = _TRAINER.format(saved=str(saved), started=str(started))
  with running_beside(_script(script), tmp_path / "log", wait=False):
    while not started.exists():
      time.sleep(0.01)
  assert saved.exists()
  for path in (saved, started):
    path.unlink()
  # It fails once the trainer runs, which may then save.
  fails = f"""
import os, time
while not os.path.exists({str(started)!r}): time.sleep(0.01)
raise SystemExit("no disk")
"""
  with (
    pytest.raises(ValueError, match=r"index builder failed:\n.*\n?no disk"),
    running_beside(_script(fails), tmp_path / "log2", wait=False),
  ):
    run_to_end(_script(script), tmp_path / "train.log")
  assert saved.exists()
