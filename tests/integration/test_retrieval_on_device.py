"""Pre-training that retrieves inside its step, against the host's path."""

import dataclasses
import functools
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from benchmarks.runs.jobs import wait_until
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.update import update_corpus
from realm_jax.training import trainer
from realm_jax.training.compilation import CompiledSteps
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import Commands

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_STEPS, _SAVE_EVERY, _BATCH = 6, 2, 16
_POSITIONS, _BLOCK_LENGTH = 112, 80
_SETTINGS = {
  "NUM_STEPS": _STEPS,
  "SAVE_EVERY_STEPS": _SAVE_EVERY,
  "LAG_STEPS": _SAVE_EVERY,
  "WAIT_FOR_GENERATIONS": True,
  "BATCH_SIZE": _BATCH,
  "BLOCK_LENGTH": _BLOCK_LENGTH,
  "JOINT_LENGTH": _POSITIONS,
  "bert.BertConfig.max_positions": _POSITIONS,
  "bert.BertConfig.dropout_rate": 0.1,
}
# Of sums that are added in another order, over a few updates.
_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def copied_world(tmp_path_factory) -> Iterator[tiny_world.World]:
  """A world in which some articles are there twice, under other ids.

  Its models read sequences of twice the length, so that several share a row.
  """
  documents = tiny_world.documents()
  copies = [{**d, "id": f"copy of {d['id']}"} for d in documents[:8]]
  bert = tiny_world.RETRIEVER.bert
  bert = dataclasses.replace(bert, max_positions=_POSITIONS)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tiny_world, "documents", lambda: documents + copies)
    retriever = tiny_world.RETRIEVER.clone(bert=bert)
    patch.setattr(tiny_world, "RETRIEVER", retriever)
    patch.setattr(tiny_world, "BLOCK_LENGTH", _BLOCK_LENGTH)
    yield tiny_world.build(tmp_path_factory.mktemp("copied"))


class _Watched(CompiledSteps):
  """Steps that a test looks at after a run."""

  opened: ClassVar["list[_Watched]"] = []
  compiled_before: ClassVar[Mapping[Any, Any]] = {}

  def __init__(self, *arguments: Any):
    super().__init__(*arguments)
    self.opened.append(self)
    self.programs.update(self.compiled_before)


@dataclasses.dataclass
class Runs:
  """Runs over the same generations, the second of which has another corpus.

  Attributes:
    commands: Commands over the world.
    folder: Folder of the runs.
  """

  commands: Commands
  folder: Path

  def on_host(self) -> Path:
    """Trains by the host's path, with generations and an update beside it."""
    model_dir, world = self.folder / "host", self.commands.world

    def build(step: int) -> None:
      checkpoint = model_dir / "checkpoints" / str(step)
      wait_until(checkpoint.exists, what="checkpoint")
      if step:
        lines = self.folder / "changes.jsonl"
        lines.write_text('{"id": "p0", "remove": true}\n')
        update_corpus([str(lines)], world.corpus_dir, tagger=tiny_world.tag)
      world.build_generation(model_dir, checkpoint_step=step)

    with ThreadPoolExecutor(1) as thread:
      building = [thread.submit(build, step) for step in (0, _SAVE_EVERY)]
      self.commands.train("pretrain", model_dir, **_SETTINGS)
      for one in building:
        one.result()
    return model_dir

  def on_devices(
    self, name: str, before: Path, checkpoint: int = 0
  ) -> tuple[Path, _Watched]:
    """Continues a run on the devices from one of its checkpoints."""
    model_dir = self.folder / name
    for part in (f"checkpoints/{checkpoint}", "generations"):
      shutil.copytree(before / part, model_dir / part)
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(trainer, "CompiledSteps", _Watched)
      self.commands.train(
        "pretrain",
        model_dir,
        **_SETTINGS,
        # With a single one, all steps would pad.
        MAX_SHAPE_BUCKETS=2,
        RETRIEVE_ON_DEVICE=True,
      )
    return model_dir, _Watched.opened.pop()


@pytest.fixture(scope="module")
def runs(copied_world, tmp_path_factory) -> Runs:
  return Runs(Commands(copied_world), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def on_host(runs) -> Path:
  return runs.on_host()


@pytest.fixture(scope="module")
def on_devices(runs, on_host) -> tuple[Path, _Watched]:
  return runs.on_devices("devices", on_host)


def _assert_same(model_dir: Path, expected: Path) -> None:
  """Compares metrics of all steps, and the last parameters."""
  found, wanted = read_rows(model_dir), read_rows(expected)
  assert len(found) == _STEPS
  for row, other in zip(found, wanted, strict=True):
    for name in ("generation", "staleness_steps", "corpus_version"):
      assert row[name] == other[name], name
    for name in ("recall", "loss", "gradient_norm", "parameter_norm"):
      assert row[name] == pytest.approx(other[name], rel=_TOLERANCE), name
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
    *map(_last_parameters, (model_dir, expected)),
  )


def _last_parameters(model_dir: Path) -> Any:
  store = CheckpointStore(model_dir)
  items = store.restore(_STEPS, items=("retriever", "reader"))
  store.close()
  return items


def test_losses_and_parameters_are_those_of_the_host(on_host, on_devices):
  model_dir, steps = on_devices
  _assert_same(model_dir, on_host)
  rows = read_rows(model_dir)
  assert "search_ms" in read_rows(on_host)[0]
  assert "search_ms" not in rows[0]
  # A generation of another corpus version was swapped in, and nothing compiled.
  assert [row["generation"] for row in rows] == [0, 0, 0, 0, 2, 2]
  assert [row["corpus_version"] for row in rows] == [1, 1, 1, 1, 2, 2]
  assert len(steps.programs) == 1


def test_a_resumed_run_repeats_its_steps(runs, on_devices, monkeypatch):
  model_dir, steps = on_devices
  # It need not compile the same program again.
  monkeypatch.setattr(_Watched, "compiled_before", steps.programs)
  resumed, _ = runs.on_devices("resumed", model_dir, checkpoint=4)
  losses = [row["loss"] for row in read_rows(resumed)]
  assert losses == [row["loss"] for row in read_rows(model_dir)][4:]
