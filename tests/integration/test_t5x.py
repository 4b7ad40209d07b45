"""The command `t5x.train` over our recipes; skipped where t5x is absent."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from benchmarks.runs.jobs import as_gin
from realm_jax.evaluation import run as evaluation_run
from realm_jax.files.metric_rows import read_rows
from realm_jax.training.config import TrainConfig
from realm_jax.training.setup import set_up
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
  # t5x draws the keys of dropout otherwise.
  "retriever.Retriever.projection_dropout_rate": 0.0,
  "BATCH_SIZE": 8,
  "LEARNING_RATE": 1e-3,
  "WARMUP_STEPS": 2,
}
_OF_RECIPE = {
  "inverse_cloze": {},
  # The retriever's first update is seen by the last step alone.
  "pretrain": {"NUM_CANDIDATES": 4, "FREEZE_RETRIEVER_STEPS": 2},
}
# With a single shape, all steps would pad.
_LAYOUTS = {"padded": {"PACK": False}, "packed": {"MAX_SHAPE_BUCKETS": 2}}
# Both engines compute the same, in programs that XLA fuses otherwise.
_TOLERANCE = 1e-5


@pytest.fixture(params=_LAYOUTS)
def layout(request) -> dict[str, Any]:
  """Bindings that choose how the step lays out rows."""
  return _LAYOUTS[request.param]


@pytest.fixture(scope="module")
def train_with_t5x(commands, command_environment, project_dir):
  """`train_with_t5x(recipe, model_dir)`: the command, until it ends."""

  def run(recipe: str, model_dir: Path, **bindings) -> None:
    bindings = {
      **_COMMON,
      **_OF_RECIPE[recipe],
      "MODEL_DIR": model_dir,
      "CORPUS_DIR": commands.world.corpus_dir,
      "SUMMARY_EVERY_STEPS": 1,
      **bindings,
    }
    command = [
      *(sys.executable, "-m", "t5x.train", "--alsologtostderr"),
      *(f"--gin_file=gin/t5x/{recipe}.gin", f"--gin_file={MODEL_FILE}"),
      *(f"--gin.{name}={as_gin(value)}" for name, value in bindings.items()),
    ]
    ended = subprocess.run(
      command,
      cwd=project_dir,
      env=command_environment,
      stderr=subprocess.PIPE,
      text=True,
      timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]

  return run


def _losses_of_t5x(model_dir: Path) -> dict[int, float]:
  """The loss of each step, as t5x has written it for TensorBoard."""
  found = {}
  files = sorted(map(str, (model_dir / "train").glob("events.*")))
  for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
    event = event_pb2.Event.FromString(record)
    for value in event.summary.value:
      if value.tag == "loss":
        found[event.step] = float(tf.make_ndarray(value.tensor))
  return found


def _losses(model_dir: Path) -> dict[int, float]:
  return {row["step"]: row["loss"] for row in read_rows(model_dir)}


def _train(commands, recipe, model_dir, **bindings):
  settings = _COMMON | _OF_RECIPE[recipe] | bindings
  return commands.train(recipe, model_dir, **settings)


def _assert_lays_out(commands, recipe, model_dir, layout) -> None:
  """Asserts that a run packs just where the bindings say so."""
  settings = _COMMON | _OF_RECIPE[recipe] | layout
  config = commands.call(TrainConfig, recipe, MODEL_DIR=model_dir, **settings)
  made = set_up(config)
  assert bool(made.layout(made.corpus).row_counts) == ("PACK" not in layout)


def test_our_loop_continues_and_repeats_inverse_cloze_of_t5x(
  commands, train_with_t5x, layout, tmp_path
):
  train_with_t5x("inverse_cloze", tmp_path / "t5x", **layout)
  losses = _losses_of_t5x(tmp_path / "t5x")
  assert list(losses) == [1, 2, 3, 4]
  _assert_lays_out(commands, "inverse_cloze", tmp_path / "t5x", layout)
  first = tmp_path / "t5x/checkpoints/0"
  settings = {**layout, "INITIAL_CHECKPOINT": first}
  _train(commands, "inverse_cloze", tmp_path / "own", **settings)
  assert _losses(tmp_path / "own") == pytest.approx(losses, rel=_TOLERANCE)
  shutil.rmtree(tmp_path / f"t5x/checkpoints/{_STEPS}")
  _train(commands, "inverse_cloze", tmp_path / "t5x", **layout)
  expected = {step: losses[step] for step in (3, 4)}
  assert _losses(tmp_path / "t5x") == pytest.approx(expected, rel=_TOLERANCE)


def test_t5x_continues_and_repeats_pretraining_of_our_loop(
  commands, train_with_t5x, layout, tmp_path
):
  with commands.index_builder(tmp_path / "own"):
    _train(commands, "pretrain", tmp_path / "own", **layout)
  losses = _losses(tmp_path / "own")
  _assert_lays_out(commands, "pretrain", tmp_path / "own", layout)
  settings = {**layout, "INITIAL_CHECKPOINT": tmp_path / "own/checkpoints/0"}
  # The generation is built from t5x's first checkpoint.
  with commands.index_builder(tmp_path / "t5x"):
    train_with_t5x("pretrain", tmp_path / "t5x", **settings)
  assert _losses_of_t5x(tmp_path / "t5x") == pytest.approx(
    losses, rel=_TOLERANCE
  )
  figures = [_masked_figures(commands, tmp_path / n) for n in ("own", "t5x")]
  assert figures[1] == pytest.approx(figures[0], rel=1e-3)
  shutil.rmtree(tmp_path / f"own/checkpoints/{_STEPS}")
  train_with_t5x("pretrain", tmp_path / "own", **layout)
  expected = {step: losses[step] for step in (3, 4)}
  assert _losses_of_t5x(tmp_path / "own") == pytest.approx(
    expected, rel=_TOLERANCE
  )


def _masked_figures(commands, model_dir: Path) -> dict[str, Any]:
  """What our evaluation of the masked words of a run finds."""
  return commands.call(
    evaluation_run.evaluate,
    "eval_masked",
    MODEL_DIR=model_dir,
    OUTPUT_DIR=model_dir / "eval",
    BATCH_SIZE=8,
    NUM_CANDIDATES=4,
    NUM_BATCHES=2,
  )
