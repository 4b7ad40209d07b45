"""Commands print their own lines, and none of the libraries they use."""

import contextlib
import io
import logging
import subprocess
import sys

import numpy as np
import pytest
from absl import logging as absl_logging
from gcsfs.retry import HttpError

from benchmarks.runs.object_store import StoreFault
from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.console.library_messages import hide_library_messages
from realm_jax.files.object_store.remote import read_bytes

# A command that writes a checkpoint and nothing else.
_SAVE = """
import numpy as np
from realm_jax.configuration import command_line
from realm_jax.checkpoints.store import CheckpointStore

def main(argv):
  store = CheckpointStore(argv[1])
  store.hurry()
  weights = {f"layer_{i}": np.random.normal(size=(64, 64)) for i in range(16)}
  store.save(0, {"retriever": weights, "optimizer": weights})
  store.wait()

command_line.run(main, takes_texts=True)
"""
_MAX_FILE_KIB = 4


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_reported_in_a_line(
  tmp_path, project_dir, command_environment
):
  done = subprocess.run(
    [
      *("bash", "-c", f'ulimit -f {_MAX_FILE_KIB}; exec "$@"', "bash"),
      *(sys.executable, "-c", _SAVE, str(tmp_path)),
    ],
    cwd=project_dir,
    # Of modules that it compiles, only the beginning would be written.
    env=command_environment | {"PYTHONDONTWRITEBYTECODE": "1"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2, done.stderr
  # Each try is said, and then that there will be no other.
  lines = done.stderr.splitlines()
  assert all("could not be written" in line for line in lines), done.stderr
  assert lines[-1].startswith("-c: ")
  assert "File too large" in lines[-1]
  assert len(lines) == 3
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    assert store.steps() == []


def test_to_read_a_checkpoint_and_a_recipe_warns_of_nothing(
  tmp_path, monkeypatch, caplog
):
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    store.save(0, {"loop": {"step": np.int64(0)}})
    store.wait()
  # Outside the clone, whose gin files are found nevertheless.
  monkeypatch.chdir(tmp_path)
  caplog.clear()
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    assert store.restore(0, items=("loop",))["loop"]["step"] == 0
  with configuration.parsed(None, ["gin/models/bert_base.gin"]):
    pass
  warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
  assert not warnings


def test_a_request_that_an_outage_fails_is_one_line(object_store, monkeypatch):
  handler, shown = absl_logging.get_absl_handler(), io.StringIO()
  monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
  # absl writes to one of the two, whether flags have been parsed or not.
  monkeypatch.setattr(sys, "stderr", shown)
  monkeypatch.setattr(handler.python_handler, "stream", shown)
  hide_library_messages()
  object_store.inject(StoreFault("refuse", ".", times=99))
  with pytest.raises(HttpError):
    read_bytes(object_store.path("a"))
  # absl has another line where no flags were parsed.
  lines = shown.getvalue().splitlines()
  assert len([line for line in lines if line.startswith("E")]) == 1
  assert len(lines) <= 2, lines
