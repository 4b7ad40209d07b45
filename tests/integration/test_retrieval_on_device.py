"""Pre-training that retrieves inside its step, against the host's path."""

import dataclasses
import functools
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from benchmarks.runs.jobs import wait_until
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.corpus.building.update import update_corpus
from realm_jax.files.metric_rows import read_rows
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.random import RandomConfig
from realm_jax.precompilation import collectives, hlo
from realm_jax.training import run as training_run
from realm_jax.training.device_retrieval.compilation import RetrievingSteps
from tests import tiny_world
from tests.integration.commands import Commands

pytestmark = pytest.mark.slow

_STEPS, _SAVE_EVERY, _BATCH = 6, 2, 32
_SETTINGS = {
  "NUM_STEPS": _STEPS,
  "SAVE_EVERY_STEPS": _SAVE_EVERY,
  "LAG_STEPS": _SAVE_EVERY,
  "WAIT_FOR_GENERATIONS": True,
  "BATCH_SIZE": _BATCH,
  "bert.BertConfig.dropout_rate": 0.1,
}
# Of sums that are added in another order, over a few updates.
_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def copied_world(tmp_path_factory):
  """A world in which some articles are there twice, under other ids."""
  documents = tiny_world.documents()
  copies = [{**d, "id": f"copy of {d['id']}"} for d in documents[:8]]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tiny_world, "documents", lambda: documents + copies)
    return tiny_world.build(tmp_path_factory.mktemp("copied"))


class _Watched(RetrievingSteps):
  """Steps that a test looks at after a run, with rows of its choice."""

  opened: ClassVar["list[_Watched]"] = []
  other_bucket: tuple[int, ...] | None = None
  compiled_before: Mapping[Any, Any] = {}

  def __init__(self, *arguments: Any):
    super().__init__(*arguments)
    self.opened.append(self)
    self.bucket = self.other_bucket or self.bucket
    self.programs.update(self.compiled_before)


@dataclasses.dataclass
class Runs:
  """Runs over the same generations, the second of which has another corpus."""

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
    self, name: str, before: Path, checkpoint: int = 0, **bindings: Any
  ) -> tuple[Path, _Watched]:
    """Continues a run on the devices from one of its checkpoints."""
    model_dir = self.folder / name
    for part in (f"checkpoints/{checkpoint}", "generations"):
      shutil.copytree(before / part, model_dir / part)
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(training_run, "RetrievingSteps", _Watched)
      settings = {**_SETTINGS, "RETRIEVE_ON_DEVICE": True, **bindings}
      self.commands.train("pretrain", model_dir, **settings)
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
    for name in ("recall", "generation", "staleness_steps", "corpus_version"):
      assert row[name] == other[name], name
    for name in ("loss", "gradient_norm", "retrieval_utility"):
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
  # Sequences share rows, or this test would be that of padding.
  assert steps.bucket is not None


def test_what_does_not_fit_is_padded(runs, on_host, monkeypatch):
  monkeypatch.setattr(_Watched, "other_bucket", (1, 1, 1))
  model_dir, _ = runs.on_devices("padded", on_host)
  _assert_same(model_dir, on_host)


def test_a_resumed_run_repeats_its_steps(runs, on_devices, monkeypatch):
  model_dir, steps = on_devices
  # It need not compile the same program again.
  monkeypatch.setattr(_Watched, "compiled_before", steps.programs)
  resumed, _ = runs.on_devices("resumed", model_dir, checkpoint=4)
  losses = [row["loss"] for row in read_rows(resumed)]
  assert losses == [row["loss"] for row in read_rows(model_dir)][4:]


def test_another_index_is_refused(runs, on_host, tmp_path):
  shutil.copytree(on_host / "checkpoints/0", tmp_path / "checkpoints/0")
  runs.commands.world.build_generation(tmp_path, index=RandomConfig())
  with pytest.raises(GenerationError, match=r"kind 'random'.*INDEX = %EXACT"):
    runs.commands.train(
      "pretrain", tmp_path, **_SETTINGS, RETRIEVE_ON_DEVICE=True
    )


def test_devices_exchange_what_is_of_the_size_of_a_batch(on_devices, runs):
  _, steps = on_devices
  (program,) = steps.programs.values()
  module = hlo.parse(program.as_text())
  found = collectives.collectives(module, {"data": 8})
  largest = {c.operation: 0 for c in found}
  for one in found:
    largest[one.operation] = max(largest[one.operation], one.bytes)
  assert set(largest) == {
    "all-gather",
    "all-reduce",
    "all-to-all",
    "reduce-scatter",
  }
