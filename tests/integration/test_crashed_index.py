"""A run whose index crashes goes on by exact search."""

import os
import signal
import threading
from pathlib import Path

import pytest

from benchmarks.jobs import wait_until
from realm_jax.indexes.scann import ScannConfig
from tests.integration.commands import Commands

pytestmark = pytest.mark.slow

_STEPS = 30


@pytest.fixture(scope="module")
def started(world, tmp_path_factory):
  """Commands, and a folder with what pre-training starts from."""
  commands, folder = Commands(world), tmp_path_factory.mktemp("started")
  for stage in ("inverse_cloze", "reading"):
    commands.train(stage, folder / stage, NUM_STEPS=2)
  return commands, folder


def _index_processes() -> list[int]:
  """The processes that search for this one."""
  found = []
  for path in Path("/proc").glob("[0-9]*"):
    try:
      parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
      command = path.joinpath("cmdline").read_bytes()
    except OSError:
      continue  # It ended meanwhile.
    if int(parent) == os.getpid() and b"realm_jax.indexes.isolated" in command:
      found.append(int(path.name))
  return found


def _pretrain(started, model_dir, **bindings):
  """Pre-trains with ScaNN, whose process is killed after some steps."""
  commands, folder = started
  metrics = model_dir / "metrics.jsonl"

  def kill():
    wait_until(
      lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3,
      what="step",
      jobs=(),
    )
    for process in _index_processes():
      os.kill(process, signal.SIGSEGV)

  killer = threading.Thread(target=kill)
  killer.start()
  try:
    with commands.index_builder(model_dir, index=ScannConfig()):
      return commands.train(
        "pretrain",
        model_dir,
        NUM_STEPS=_STEPS,
        SAVE_EVERY_STEPS=_STEPS,
        INITIAL_CHECKPOINT=folder / "inverse_cloze",
        INITIAL_READER=folder / "reading",
        **bindings,
      )
  finally:
    killer.join()


def test_exact_search_takes_the_place_of_a_crashed_index(
  started, tmp_path, caplog
):
  result = _pretrain(started, tmp_path / "run")
  assert result["step"] == _STEPS
  said = "scann ended by SIGSEGV: going on with exact search of generation 0"
  assert said in caplog.text
  assert not _index_processes()
