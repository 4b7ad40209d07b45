"""The command `t5x.train` over our recipes; skipped where t5x is absent."""

import importlib.util
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from harness.jobs import as_gin
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.training.compiled_steps import set_up
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import MODEL_FILE

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("one_device"),
  pytest.mark.skipif(
    importlib.util.find_spec("t5x") is None,
    reason="t5x is absent; `make t5x` adds it",
  ),
]

_STEPS, _SAVED = 4, 2
_COMMON = {
  "NUM_STEPS": _STEPS,
  "SAVE_EVERY_STEPS": _SAVED,
  "BATCH_SIZE": 8,
  "LEARNING_RATE": 1e-3,
  "WARMUP_STEPS": 2,
  "TIMEOUT_SECONDS": 300.0,
}
# The retriever's first update is seen by the last step alone. With one shape,
# all steps would pad.
_PACKED = {
  "NUM_CANDIDATES": 4,
  "FREEZE_RETRIEVER_STEPS": 2,
  "MAX_SHAPE_BUCKETS": 2,
  "NUM_MICROBATCHES": 2,
}
# Both engines run the same program.
_TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def start_t5x(commands, command_environment, project_dir):
  """`start_t5x(recipe, model_dir)`: the command, as a process."""

  def start(recipe: str, model_dir: Path, **bindings) -> subprocess.Popen[str]:
    bindings = {
      **_COMMON,
      "MODEL_DIR": model_dir,
      "CORPUS_DIR": commands.world.corpus_dir,
      **bindings,
    }
    command = [
      *(sys.executable, "-m", "t5x.train", "--alsologtostderr"),
      *(f"--gin_file=gin/t5x/{recipe}.gin", f"--gin_file={MODEL_FILE}"),
      *(f"--gin.{name}={as_gin(value)}" for name, value in bindings.items()),
    ]
    return subprocess.Popen(
      command,
      cwd=project_dir,
      env=command_environment,
      stderr=subprocess.PIPE,
      text=True,
    )

  return start


def _end(process: subprocess.Popen[str], code: int = 0) -> str:
  """Returns what a process has logged, once it has ended with a code."""
  _, log = process.communicate(timeout=600)
  assert process.returncode == code, log[-10_000:]
  return log


def _losses(model_dir: Path) -> dict[int, float]:
  return {row["step"]: row["loss"] for row in read_rows(model_dir)}


def _assert_same_end(one: Path, other: Path) -> None:
  """Asserts that two runs have the same losses and last parameters."""
  expected = _losses(one)
  assert list(expected) == [1, 2, 3, 4]
  assert _losses(other) == pytest.approx(expected, rel=_TOLERANCE)
  ends = [
    CheckpointStore(folder).restore(_STEPS, items=("retriever",))
    for folder in (one, other)
  ]
  for (path, array), expected in zip(
    jax.tree_util.tree_leaves_with_path(ends[0]),
    jax.tree.leaves(ends[1]),
    strict=True,
  ):
    if "projection" in jax.tree_util.keystr(path):
      np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-7)


def test_both_loops_pretrain_alike_on_packed_bins_and_continue_each_other(
  commands, start_t5x, tmp_path
):
  own, theirs = tmp_path / "own", tmp_path / "t5x"
  settings = _COMMON | _PACKED
  config = commands.call(TrainConfig, "pretrain", MODEL_DIR=own, **settings)
  setup = set_up(config)
  assert setup.layout(setup.corpus).bin_counts
  with commands.index_builder(own):
    commands.train("pretrain", own, **settings)
  with commands.index_builder(theirs):
    _end(start_t5x("pretrain", theirs, **_PACKED))
  _assert_same_end(own, theirs)
  for folder in (own, theirs):
    shutil.copytree(folder, tmp_path / f"whole_{folder.name}")
    shutil.rmtree(folder / f"checkpoints/{_STEPS}")
  _end(start_t5x("pretrain", own, **_PACKED))
  commands.train("pretrain", theirs, **settings)
  for folder in (own, theirs):
    _assert_same_end(tmp_path / f"whole_{folder.name}", folder)


def test_a_preempted_run_saves_and_our_loop_continues_it(
  commands, start_t5x, tmp_path
):
  own, theirs = tmp_path / "own", tmp_path / "t5x"
  endless = {"NUM_STEPS": 100_000, "SAVE_EVERY_STEPS": 1000}
  process = start_t5x("inverse_cloze", theirs, **endless)
  while not (theirs / "metrics.jsonl").exists() or len(_losses(theirs)) < 3:
    assert process.poll() is None, _end(process)
    time.sleep(0.1)
  process.send_signal(signal.SIGTERM)
  _end(process)
  step = CheckpointStore(theirs).latest()
  assert 3 <= step < 1000
  settings = {**_COMMON, **endless, "NUM_STEPS": step + 2}
  for folder in (theirs, own):
    commands.train("inverse_cloze", folder, **settings)
  losses = _losses(theirs)
  assert list(losses) == list(range(1, step + 3))
  # The learning rate falls to the last step, which differs.
  assert losses[1] == pytest.approx(_losses(own)[1], rel=_TOLERANCE)


def test_the_first_error_is_the_last_that_is_printed(start_t5x, tmp_path):
  # No snapshot is built from checkpoint 0.
  process = start_t5x("pretrain", tmp_path, **_PACKED, TIMEOUT_SECONDS=1.0)
  log = _end(process, code=1)
  assert CheckpointStore(tmp_path).steps() == [0]
  last = log.rpartition("Traceback (most recent call last)")[2]
  assert "RetrievalUnavailableError" in last
  assert "schedule new futures" not in log
