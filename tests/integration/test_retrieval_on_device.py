"""Pre-training that retrieves inside its step, over two corpus versions.

That its losses are those of the host's path is shown in `test_stages.py`.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.runs.jobs import wait_until
from realm_jax.corpus.update import update_corpus
from realm_jax.training import trainer
from realm_jax.training.compilation import CompiledSteps
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import Commands

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_SAVE_EVERY = 2
_SETTINGS = {
  "NUM_STEPS": 6,
  "SAVE_EVERY_STEPS": _SAVE_EVERY,
  "LAG_STEPS": _SAVE_EVERY,
  "WAIT_FOR_GENERATIONS": True,
  "RETRIEVE_ON_DEVICE": True,
  "PACK": False,
  "bert.BertConfig.dropout_rate": 0.1,
}


class _Watched(CompiledSteps):
  """Steps that a later run need not compile again."""

  compiled: ClassVar[dict[Any, Any]] = {}

  def __init__(self, *arguments: Any):
    super().__init__(*arguments)
    self.programs = self.compiled


@pytest.fixture(scope="module")
def own_world(tmp_path_factory) -> tiny_world.World:
  return tiny_world.build(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module", autouse=True)
def _watched():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(trainer, "CompiledSteps", _Watched)
    yield


@pytest.fixture(scope="module")
def model_dir(own_world, tmp_path_factory) -> Path:
  """A run whose corpus is updated between two generations."""
  folder = tmp_path_factory.mktemp("runs")
  model_dir = folder / "run"

  def build(step: int) -> None:
    checkpoint = model_dir / "checkpoints" / str(step)
    wait_until(checkpoint.exists, what="checkpoint")
    if step:
      lines = folder / "changes.jsonl"
      lines.write_text('{"id": "p0", "remove": true}\n')
      update_corpus([str(lines)], own_world.corpus_dir, tagger=tiny_world.tag)
    own_world.build_generation(model_dir, checkpoint_step=step)

  with ThreadPoolExecutor(1) as thread:
    building = [thread.submit(build, step) for step in (0, _SAVE_EVERY)]
    Commands(own_world).train("pretrain", model_dir, **_SETTINGS)
    for one in building:
      one.result()
  return model_dir


def test_another_corpus_version_is_swapped_in_and_compiles_nothing(model_dir):
  rows = read_rows(model_dir)
  assert [row["generation"] for row in rows] == [0, 0, 0, 0, 2, 2]
  assert [row["corpus_version"] for row in rows] == [1, 1, 1, 1, 2, 2]
  assert "search_ms" not in rows[0]
  assert len(_Watched.compiled) == 1


def test_a_resumed_run_repeats_its_steps(own_world, model_dir, tmp_path):
  for part in ("checkpoints/4", "generations"):
    shutil.copytree(model_dir / part, tmp_path / part)
  Commands(own_world).train("pretrain", tmp_path, **_SETTINGS)
  losses = [row["loss"] for row in read_rows(tmp_path)]
  assert losses == [row["loss"] for row in read_rows(model_dir)][4:]
