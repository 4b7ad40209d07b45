"""A corpus that is updated while a run trains on it."""

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.jobs import wait_until
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.update import update_corpus
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.run import RunConfig, TrainedRun
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.training.metric_rows import read_rows
from realm_jax.training.stages.pretraining import Pretraining
from tests import tiny_world
from tests.integration.commands import Commands
from tests.json_lines import write_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_STEPS, _SAVE_EVERY, _BATCH = 12, 4, 8
_SNAPSHOTS = [0] * 8 + [4] * 4
_VERSIONS = [1] * 8 + [2] * 4
_REMOVED = [f"p{i}" for i in range(0, 12, 2)]
_ADDED = [f"new{i}" for i in range(26)]


def _update(folder: Path) -> None:
  """Six people go, one has another life, and some come under other titles."""
  people = tiny_world.documents()
  changes = [{"id": name, "remove": True} for name in _REMOVED]
  changes += [
    {**person, "id": name, "title": person["title"].split()[0]}
    for name, person in zip(_ADDED, people, strict=True)
  ]
  changes.append({**people[1], "text": people[3]["text"]})
  lines = write_lines(folder / "changes.jsonl", changes)
  update_corpus([str(lines)], folder / "corpus", tagger=tiny_world.tag)


def _ids(names: list[str]) -> np.ndarray:
  return np.array([block_id("corpus", name, 0) for name in names])


def _train(commands: Commands, folder: Path) -> Path:
  """A run whose corpus changes before its second snapshot is built."""
  world, corpus, model_dir = commands.world, folder / "corpus", folder / "run"
  shutil.copytree(world.corpus_dir, corpus)

  def build(step: int) -> None:
    checkpoint = model_dir / "checkpoints" / str(step)
    wait_until(checkpoint.exists, what="checkpoint")
    if step:
      _update(folder)
    world.build_snapshot(model_dir, corpus_dir=corpus, checkpoint_step=step)

  with ThreadPoolExecutor(1) as thread:
    building = [thread.submit(build, step) for step in (0, _SAVE_EVERY)]
    commands.train(
      "pretrain",
      model_dir,
      CORPUS_DIR=corpus,
      NUM_STEPS=_STEPS,
      SAVE_EVERY_STEPS=_SAVE_EVERY,
      LAG_STEPS=_SAVE_EVERY,
      BATCH_SIZE=_BATCH,
      WAIT_FOR_SNAPSHOTS=True,
      PACK=False,
    )
    for one in building:
      one.result()
  return model_dir


def _assert_versions(model_dir: Path) -> None:
  rows = read_rows(model_dir)
  assert [row["snapshot"] for row in rows] == _SNAPSHOTS
  assert [row["corpus_version"] for row in rows] == _VERSIONS
  assert [row["staleness_steps"] for row in rows] == [
    step - snapshot for step, snapshot in enumerate(_SNAPSHOTS)
  ]


@dataclasses.dataclass
class Watched:
  """A run, and what each of its steps was given."""

  folder: Path
  model_dir: Path
  steps: list[dict[str, Any]]


@pytest.fixture(scope="module")
def watched(commands, tmp_path_factory) -> Watched:
  steps, assemble = [], Pretraining.features

  def watch(self, batch, retrieved, context):
    corpus = context.corpus
    steps.append(
      {
        "version": corpus.version,
        "found": corpus.block_ids[retrieved.rows],
        "sources": batch.arrays["source_id"],
      }
    )
    made, metrics = assemble(self, batch, retrieved, context)
    # No candidate is the block of its own sentence, whatever its row is now.
    rows = corpus.rows_of(batch.arrays["source_id"])
    for source, candidates in zip(rows, made.candidates.tokens, strict=True):
      own = corpus.gather(np.array(source), context.block_length)
      assert source < 0 or not (candidates == own).all(axis=-1).any()
    return made, metrics

  folder = tmp_path_factory.mktemp("watched")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Pretraining, "features", watch)
    model_dir = _train(commands, folder)
  return Watched(folder, model_dir, steps)


def test_each_step_searches_the_version_of_its_snapshot(watched):
  _assert_versions(watched.model_dir)
  assert [step["version"] for step in watched.steps] == _VERSIONS
  before, after = (
    np.unique([s["found"] for s in watched.steps if s["version"] == version])
    for version in (1, 2)
  )
  removed, added = _ids(_REMOVED), _ids(_ADDED)
  assert np.isin(removed, before).any()
  assert not np.isin(removed, after).any()
  assert np.isin(added, after).any()
  assert not np.isin(added, before).any()


def test_the_examples_stay_those_of_the_version_it_began_with(watched):
  stream = stream_batches(
    DataConfig(
      task="masked_salient_spans",
      corpus_dir=watched.folder / "corpus",
      corpus_version=1,
      batch_size=_BATCH,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    )
  )
  for step, batch in zip(watched.steps, stream, strict=False):
    np.testing.assert_array_equal(step["sources"], batch.arrays["source_id"])
  stream.close()
  # Removed or not: the sentences of those that are gone are still read.
  late = [step["sources"] for step in watched.steps[8:]]
  assert np.isin(_ids(_REMOVED), late).any()


def test_who_asks_reads_the_version_of_the_snapshot(watched, commands, caplog):
  """An old snapshot answers from its own version, and says that it is old."""
  config = commands.call(
    RunConfig,
    "ask",
    MODEL_DIR=watched.model_dir,
    CORPUS_DIR=watched.folder / "corpus",
    SNAPSHOT=watched.model_dir / "snapshots" / "00000000",
    NUM_READ=3,
    NUM_SEARCHED=20,
  )
  run = TrainedRun.load(config)
  (result,) = ask(run, ["where was Ada born?"])
  assert len(result.hits) == 3
  assert run.corpus.version == 1
  assert "is of version 1 of the corpus, which has version 2" in caplog.text
