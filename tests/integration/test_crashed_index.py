"""A run whose index crashes goes on by exact search."""

import os
import signal
import threading
from pathlib import Path

import pytest

from benchmarks.runs.jobs import wait_until
from realm_jax.indexes.scann.config import ScannConfig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_STEPS = 30


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


def _pretrain(commands, model_dir):
  """Pre-trains with ScaNN, whose process is killed after some steps."""
  metrics = model_dir / "metrics.jsonl"

  def kill():
    wait_until(
      lambda: metrics.exists() and metrics.stat().st_size,
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
        PACK=False,
      )
  finally:
    killer.join()


def test_exact_search_takes_the_place_of_a_crashed_index(
  commands, tmp_path, caplog
):
  result = _pretrain(commands, tmp_path / "run")
  assert result.step == _STEPS
  said = "scann ended by SIGSEGV: falling back to exact search of generation 0"
  assert said in caplog.text
  assert not _index_processes()
