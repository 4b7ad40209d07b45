"""The stages, each after the other, in several layouts of devices."""

import contextlib
import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from harness.jobs import Job, free_port, running, wait_until
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots import build
from realm_jax.training import bin_counts, compiled_steps
from realm_jax.training.loop import TrainResult
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import EVALUATIONS
from tests.json_lines import read_lines

pytestmark = pytest.mark.slow

_STEPS = 4
_PROCESSES, _DEVICES_EACH = 2, 2
_ALL_AXES = {
  "FSDP": 2,
  "MODEL_PARALLELISM": 2,
  # The number of wordpieces is odd.
  "AXIS_RULES": [("vocab", None)],
}
# Sums over devices come in another order, and updates carry that on.
_TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def train(commands):
  """`train(stage, folder, before)`: all steps of a stage, after another."""

  def run(
    stage: str, folder: Path, before: Path, **bindings: Any
  ) -> TrainResult:
    settings = {"NUM_STEPS": _STEPS, **bindings}
    if stage == "inverse_cloze":
      return commands.train_stage(stage, folder, before, **settings)
    with commands.index_builder(folder / stage):
      return commands.train_stage(stage, folder, before, **settings)

  return run


@pytest.fixture(scope="module")
def on_eight(train, tmp_path_factory):
  """The folder of the stages, on eight simulated devices, by all axes."""
  assert jax.device_count() == 8
  folder = tmp_path_factory.mktemp("eight")
  for stage in ("inverse_cloze", "pretrain", "open_qa"):
    assert train(stage, folder, folder, **_ALL_AXES).step == _STEPS
  return folder


@pytest.fixture(scope="module")
def on_two_processes(
  commands, on_eight, command_environment, quick_jobs, tmp_path_factory
):
  """The folder of the stages, by two processes with two devices each."""
  folder = tmp_path_factory.mktemp("processes")
  address = f"localhost:{free_port()}"
  devices = f"--xla_force_host_platform_device_count={_DEVICES_EACH}"
  xla_flags = f"{command_environment['XLA_FLAGS']} {devices}"
  environment = {**command_environment, "XLA_FLAGS": xla_flags}
  group = []
  for index in range(_PROCESSES):
    words = address, _PROCESSES, index, commands.world.directory, on_eight
    child = "tests.integration.processes_child"
    command = [sys.executable, "-m", child, *words, folder, _STEPS]
    group.append(
      Job(
        f"process {index}",
        [str(word) for word in command],
        log=folder / f"{index}.log",
        environment=environment,
      )
    )
  with running(*group):
    first = folder / "open_qa" / "checkpoints" / "0"
    wait_until(first.exists, what="checkpoint", jobs=tuple(group))
    commands.world.build_snapshot(folder / "open_qa")
    for process in group:
      wait_until(process.ended, what="end of the group", jobs=tuple(group))
  return folder


def _assert_same(model_dir: Path, expected: Path) -> None:
  rows, wanted = read_rows(model_dir), read_rows(expected)
  assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
  for name in {"loss", "recall"} & rows[0].keys():
    assert [row[name] for row in rows] == pytest.approx(
      [row[name] for row in wanted], rel=_TOLERANCE
    ), name


def test_packed_and_searched_in_the_step_losses_are_the_same(
  train, on_eight, tmp_path, monkeypatch
):
  # The reference pads, searches on the host and takes each batch as a whole.
  chosen = []
  # Sequences so short share rows, though that saves hardly any of them.
  monkeypatch.setattr(bin_counts, "_MIN_SAVING", 0.005)

  def choose(*given, **settings):
    chosen.extend(bin_counts.choose_bin_counts(*given, **settings))
    return tuple(chosen)

  first = functools.partial(make_mesh, devices=jax.devices()[:4])
  monkeypatch.setattr(compiled_steps, "make_mesh", first)
  monkeypatch.setattr(build, "make_mesh", first)
  monkeypatch.setattr(compiled_steps, "choose_bin_counts", choose)
  layout = {
    **_ALL_AXES,
    "FSDP": 1,
    "RETRIEVE_ON_DEVICE": True,
    "NUM_MICROBATCHES": 2,
    "MAX_SHAPE_BUCKETS": 2,
  }
  train("pretrain", tmp_path, on_eight, **layout)
  assert chosen
  _assert_same(tmp_path / "pretrain", on_eight / "pretrain")
  assert "search_ms" in read_rows(on_eight / "pretrain")[0]
  assert "search_ms" not in read_rows(tmp_path / "pretrain")[0]


def test_several_processes_have_the_same_losses(on_eight, on_two_processes):
  _assert_same(on_two_processes / "open_qa", on_eight / "open_qa")


def test_sigterm_to_one_process_saves_and_ends_all_at_the_same_step(
  on_eight, on_two_processes, train
):
  done = len(read_rows(on_two_processes / "inverse_cloze"))
  assert 0 < done < _STEPS
  # Another layout goes on from there, as if nothing had happened.
  assert train("inverse_cloze", on_two_processes, on_eight).step == _STEPS
  _assert_same(on_two_processes / "inverse_cloze", on_eight / "inverse_cloze")


def test_adafactor_over_eight_devices_resumes_exactly(commands, tmp_path):
  whole, resumed = tmp_path / "whole", tmp_path / "resumed"
  train = functools.partial(
    commands.train,
    "inverse_cloze",
    NUM_STEPS=4,
    SAVE_EVERY_STEPS=2,
    FSDP=8,
    OPTIMIZER="adafactor",
    SCHEDULE="constant",
    **{
      "bert.BertConfig.num_layers": 2,
      # Smaller matrices are not factored.
      "bert.BertConfig.hidden_size": 128,
      "bert.BertConfig.intermediate_size": 128,
    },
  )
  train(whole)
  shutil.copytree(whole / "checkpoints/2", resumed / "checkpoints/2")
  train(resumed)
  saved = []
  for model_dir in (whole, resumed):
    with contextlib.closing(CheckpointStore(model_dir)) as store:
      saved.append(store.restore(4, items=("retriever", "optimizer")))
  jax.tree.map(np.testing.assert_array_equal, *saved)
  size = {item: optax.tree.size(tree) for item, tree in saved[0].items()}
  assert size["optimizer"] < size["retriever"] / 8


@pytest.mark.parametrize("recipe", EVALUATIONS)
def test_several_processes_have_the_same_figures(
  recipe, commands, on_eight, on_two_processes, tmp_path
):
  commands.evaluate(recipe, on_eight, tmp_path)
  expected = json.loads((tmp_path / "metrics.json").read_text())
  folder = on_two_processes / recipe
  written = json.loads((folder / "both" / "metrics.json").read_text())
  for process in range(_PROCESSES):
    found = json.loads((folder / f"{process}.json").read_text())
    assert found["figures"] == written
    # What a call that broke off had found is not searched again.
    if recipe == "eval":
      assert found["searches"] == 0
  del expected["seconds"], written["seconds"]
  for name, value in expected.items():
    if isinstance(value, float):
      value = pytest.approx(value, rel=_TOLERANCE)
    assert written[name] == value, name
  if recipe != "eval":
    return
  # The lines of all processes are in the order of the questions.
  lines = read_lines(folder / "both" / "predictions.jsonl")
  assert [line["id"] for line in lines] == [f"q{i}" for i in range(11)]
  for line, same in zip(
    lines, read_lines(tmp_path / "predictions.jsonl"), strict=True
  ):
    for one, other in zip(line["evidence"], same["evidence"], strict=True):
      assert one["block"] == other["block"]
      assert one["score"] == pytest.approx(other["score"], abs=1e-4)
    assert line["prediction"] == same["prediction"]


def test_processes_that_share_no_folder_are_told(on_two_processes):
  for process in range(_PROCESSES):
    message = (on_two_processes / f"{process}.txt").read_text()
    assert "process 1: " in message and "name an OUTPUT_DIR" in message
