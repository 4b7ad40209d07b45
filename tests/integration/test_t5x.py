"""The command `t5x.train` over our recipes; skipped where t5x is absent."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.training.compiled_steps import set_up
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import MODEL_FILE
from tests.processes.jobs import as_gin

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
def train_by_t5x(commands, command_environment, project_dir):
  """`train_by_t5x(model_dir)`: the command, to its end."""

  def train(model_dir: Path) -> None:
    bindings = {
      **_COMMON,
      **_PACKED,
      "MODEL_DIR": model_dir,
      "CORPUS_DIR": commands.world.corpus_dir,
    }
    command = [
      *(sys.executable, "-m", "t5x.train", "--alsologtostderr"),
      *("--gin_file=gin/t5x/pretrain.gin", f"--gin_file={MODEL_FILE}"),
      *(f"--gin.{name}={as_gin(value)}" for name, value in bindings.items()),
    ]
    subprocess.run(
      command, cwd=project_dir, env=command_environment, check=True
    )

  return train


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
  commands, train_by_t5x, tmp_path
):
  own, theirs = tmp_path / "own", tmp_path / "t5x"
  settings = _COMMON | _PACKED
  config = commands.call(TrainConfig, "pretrain", MODEL_DIR=own, **settings)
  setup = set_up(config)
  assert setup.layout(setup.corpus).bin_counts
  with commands.index_builder(own):
    commands.train("pretrain", own, **settings)
  with commands.index_builder(theirs):
    train_by_t5x(theirs)
  _assert_same_end(own, theirs)
  for folder in (own, theirs):
    shutil.copytree(folder, tmp_path / f"whole_{folder.name}")
    shutil.rmtree(folder / f"checkpoints/{_STEPS}")
  train_by_t5x(own)
  commands.train("pretrain", theirs, **settings)
  for folder in (own, theirs):
    _assert_same_end(tmp_path / f"whole_{folder.name}", folder)
