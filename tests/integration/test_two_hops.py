"""Open QA over paths of two blocks, by commands."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import realm_jax
from harness.jobs import wait_until
from realm_jax.errors import RealmError
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import Commands, call, losses
from tests.json_lines import read_lines
from tests.tiny_world import RETRIEVER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_SETTINGS = {
  "HOP_LENGTH": 56,
  "JOINT_LENGTH": 56,
  "FIRST_BEAM": 3,
  "SECOND_BEAM": 2,
  "NUM_READ": 4,
  "NUM_STEPS": 6,
  "SAVE_EVERY_STEPS": 2,
  "KEEP_CHECKPOINTS": 4,
  "LAG_STEPS": 2,
  "WAIT_FOR_SNAPSHOTS": True,
  "STEPS_AHEAD": 2,
}

_RETRIEVER = RETRIEVER.clone(hop_length=_SETTINGS["HOP_LENGTH"])


@pytest.fixture(scope="module")
def commands(world) -> Commands:
  return Commands(world)


@pytest.fixture(scope="module")
def settings(world):
  return {**_SETTINGS, "TRAIN_QUESTIONS": world.question_file}


@pytest.fixture(scope="module")
def trained(commands, settings, tmp_path_factory) -> Path:
  """A run that swaps the snapshot of step 0 for that of step 2."""
  folder = tmp_path_factory.mktemp("two_hops") / "run"

  def build(step: int) -> None:
    checkpoint = folder / "checkpoints" / str(step)
    wait_until(checkpoint.exists, what="checkpoint")
    commands.world.build_snapshot(
      folder, checkpoint_step=step, retriever=_RETRIEVER
    )

  with ThreadPoolExecutor(1) as thread:
    building = [thread.submit(build, step) for step in (0, 2)]
    commands.train("two_hop_qa", folder, **settings)
    for one in building:
      one.result()
  return folder


def test_it_resumes_exactly_between_two_searches(
  trained, commands, settings, tmp_path
):
  assert [row["snapshot"] for row in read_rows(trained)] == [0] * 4 + [2] * 2
  for name in ("checkpoints/2", "snapshots"):
    shutil.copytree(trained / name, tmp_path / name)
  commands.train("two_hop_qa", tmp_path, **settings)
  assert losses(tmp_path) == losses(trained)[2:]


def test_paths_are_searched_read_and_shown(trained, commands, tmp_path):
  commands.world.build_snapshot(trained, retriever=_RETRIEVER)
  metrics = call(
    *(evaluate, [str(trained / "config.json"), "gin/runs/eval.gin"]),
    CORPUS_DIR=commands.world.corpus_dir,
    MODEL_DIR=trained,
    OUTPUT_DIR=tmp_path,
    QUESTIONS=commands.world.question_file,
  )
  assert metrics["num_questions"] == 11
  for line in read_lines(tmp_path / "predictions.jsonl"):
    assert [one["read"] for one in line["evidence"]].count(True) == 4
  run = realm_jax.load(trained)
  # The index is that of the checkpoint, whose block tower is trained, too.
  assert run.snapshot_step == 6
  (found,) = run.ask(["where was Ada born?"])
  assert len(found.hits) == 4
  paths = [[part.row for part in hit.block.parts] for hit in found.hits]
  assert len({frozenset(path) for path in paths}) == 4
  assert sum(hit.share for hit in found.hits) == pytest.approx(1.0)
  long = next(hit for hit in found.hits if len(hit.block.parts) > 1)
  assert [one["id"] for one in long.json()["path"]] == [
    part.id for part in long.block.parts
  ]


def test_a_retriever_without_hop_length_is_refused(
  commands, settings, tmp_path
):
  with pytest.raises(RealmError, match="HOP_LENGTH"):
    commands.train("two_hop_qa", tmp_path, **{**settings, "HOP_LENGTH": None})
