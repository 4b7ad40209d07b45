"""A corpus that is updated while a run trains on it, and is killed, too."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults import verdict
from benchmarks.runs.jobs import wait_until
from benchmarks.runs.pretraining import Run
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.evaluation.answers import ask
from realm_jax.evaluation.run import Run as LoadedRun
from realm_jax.evaluation.run import RunConfig
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.training.stages.pretraining import Pretraining
from tests import tiny_world
from tests.integration.commands import MODEL_FILE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_STEPS, _SAVE_EVERY, _BATCH = 16, 4, 8
_REMOVED = [f"p{i}" for i in range(0, 12, 2)]
_ADDED = [f"new{i}" for i in range(26)]
# Of devices that add up in another order, as in test_stages.py.
_TOLERANCE = 2e-4


def _update(folder: Path) -> None:
  """Six people go, one has another life, and all come under other titles."""
  people = tiny_world.documents()
  changes = [{"id": name, "remove": True} for name in _REMOVED]
  changes += [
    {**person, "id": name, "title": person["title"].split()[0]}
    for name, person in zip(_ADDED, people, strict=True)
  ]
  changes.append({**people[1], "text": people[3]["text"]})
  lines = folder / "changes.jsonl"
  lines.write_text("\n".join(map(json.dumps, changes)))
  update_corpus([str(lines)], folder / "corpus", tagger=tiny_world.tag)


def _ids(names: list[str]) -> np.ndarray:
  return np.array([block_id("corpus", name, 0) for name in names])


def _folder(world, tmp_path_factory, name: str) -> Path:
  folder = tmp_path_factory.mktemp(name)
  shutil.copytree(world.corpus_dir, folder / "corpus")
  return folder


@dataclasses.dataclass
class Watched:
  """A run, and what each of its steps was given."""

  folder: Path
  run: Run
  steps: list[dict[str, Any]]


def _run(folder: Path, environment: Any = None) -> Run:
  return Run(
    directory=folder,
    corpus_dir=folder / "corpus",
    model=MODEL_FILE,
    num_steps=_STEPS,
    save_every_steps=_SAVE_EVERY,
    batch_size=_BATCH,
    environment=environment,
  )


@pytest.fixture(scope="module")
def watched(world, commands, tmp_path_factory) -> Watched:
  """A run that waits, in this process; it changes after step 4."""
  folder = _folder(world, tmp_path_factory, "watched")
  run, steps = _run(folder), []
  assemble = Pretraining.assemble

  def watch(self, batch, retrieved, context):
    corpus = context.corpus
    steps.append(
      {
        "generation": context.generation.step,
        "version": corpus.version,
        "found": corpus.block_ids[retrieved.rows],
        "sources": batch.arrays["source_id"],
        "positions": batch.next_positions,
      }
    )
    made, metrics = assemble(self, batch, retrieved, context)
    # No candidate is the block of its own sentence, whatever its row is now.
    rows = corpus.rows_of(batch.arrays["source_id"])
    for source, candidates in zip(rows, made.candidates.tokens, strict=True):
      own = corpus.gather(np.array(source), context.block_length)
      assert source < 0 or not (candidates == own).all(axis=-1).any()
    return made, metrics

  def build(step: int) -> None:
    wait_until(lambda: run.last_checkpoint() >= step, what="checkpoint")
    if step == _SAVE_EVERY:
      _update(folder)
    settings = {"corpus_dir": run.corpus_dir, "checkpoint_step": step}
    assert world.build_generation(run.model_dir, **settings) == [step]

  with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
    patch.setattr(Pretraining, "assemble", watch)
    wanted = range(0, _STEPS - _SAVE_EVERY, _SAVE_EVERY)
    building = [thread.submit(build, step) for step in wanted]
    commands.train(
      "pretrain",
      run.model_dir,
      CORPUS_DIR=run.corpus_dir,
      NUM_STEPS=_STEPS,
      SAVE_EVERY_STEPS=_SAVE_EVERY,
      LAG_STEPS=_SAVE_EVERY,
      BATCH_SIZE=_BATCH,
      WAIT_FOR_GENERATIONS=True,
      **{"config.RefreshConfig.timeout_seconds": 90.0},
    )
    for one in building:
      one.result()
  return Watched(folder, run, steps)


def test_each_step_searches_the_version_of_its_generation(watched):
  generations = [max(0, step - 4) // 4 * 4 for step in range(_STEPS)]
  versions = [1 if generation == 0 else 2 for generation in generations]
  assert [step["generation"] for step in watched.steps] == generations
  assert [step["version"] for step in watched.steps] == versions
  rows = verdict.curve(watched.run)
  assert [row["corpus_version"] for row in rows] == versions


def test_what_is_removed_is_not_found_again_and_what_is_added_is(watched):
  found = {1: [], 2: []}
  for step in watched.steps:
    found[step["version"]].append(step["found"])
  before, after = (np.unique(found[version]) for version in (1, 2))
  removed, added = _ids(_REMOVED), _ids(_ADDED)
  assert np.isin(removed, before).any()
  assert not np.isin(removed, after).any()
  assert np.isin(added, after).any()
  assert not np.isin(added, before).any()


def test_the_examples_stay_those_of_the_version_it_began_with(watched):
  stream = BatchStream(
    DataConfig(
      task="masked_salient_spans",
      corpus_dir=watched.run.corpus_dir,
      corpus_version=1,
      batch_size=_BATCH,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    )
  )
  sources = []
  for step, batch in zip(watched.steps, stream, strict=False):
    np.testing.assert_array_equal(step["positions"], batch.next_positions)
    np.testing.assert_array_equal(step["sources"], batch.arrays["source_id"])
    sources.append(step["sources"])
  stream.close()
  # Removed or not: the sentences of those that are gone are still read.
  late = np.concatenate(sources[8:])
  assert np.isin(_ids(_REMOVED), late).any()


def test_kills_across_an_update_change_nothing(
  watched, world, tmp_path_factory, command_environment, quick_jobs
):
  folder = _folder(world, tmp_path_factory, "killed")
  run = _run(folder, command_environment)
  trainer, builder = run.trainer(), run.builder()
  try:
    trainer.start()
    wait_until(
      lambda: run.last_checkpoint() >= 0, what="checkpoint", jobs=(trainer,)
    )
    world.build_generation(run.model_dir, corpus_dir=run.corpus_dir)
    # Then it waits for generation 4.
    wait_until(
      lambda: run.last_checkpoint() >= 4, what="checkpoint", jobs=(trainer,)
    )
    _update(folder)
    builder.start()
    wait_until(
      lambda: run.last_generation() >= 4, what="generation", jobs=(builder,)
    )
    trainer.kill()
    builder.kill()
    for job in (trainer, builder):
      job.start()
    wait_until(trainer.ended, what="end of training", jobs=(builder,))
    assert builder.terminate() == 0
  finally:
    trainer.kill()
    builder.kill()
  rows, expected = verdict.curve(run), verdict.curve(watched.run)
  assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
  for name in ("generation", "corpus_version", "staleness_steps"):
    assert [r[name] for r in rows] == [r[name] for r in expected]
  assert [row["loss"] for row in rows] == pytest.approx(
    [row["loss"] for row in expected], rel=_TOLERANCE
  )
  assert verdict.refusals(run) == []


def test_who_asks_reads_the_version_of_the_generation(
  watched, commands, caplog
):
  """An old generation answers from its own version, and says that it is old."""
  generations = watched.run.model_dir / "generations"

  def corpus_of(step):
    config = commands.call(
      RunConfig,
      "ask",
      MODEL_DIR=watched.run.model_dir,
      CORPUS_DIR=watched.run.corpus_dir,
      GENERATION=generations / f"{step:08d}",
      NUM_READ=3,
      NUM_SEARCHED=20,
    )
    run = LoadedRun.load(config)
    (answered,) = ask(run, ["where was Ada born?"])
    assert len(answered.blocks) == 20
    return run.corpus

  published = sorted(path.name for path in generations.glob("0*"))
  newest = corpus_of(int(published[-1]))
  assert newest.version == 2
  assert "is of version 1 of the corpus" not in caplog.text
  update = watched.folder / "more.jsonl"
  update.write_text(json.dumps({"id": "p3", "remove": True}))
  update_corpus([str(update)], watched.run.corpus_dir)
  assert corpus_of(int(published[-1])).version == 2
  assert "is of version 2 of the corpus, which has version 3" in caplog.text
  assert Corpus.open(watched.run.corpus_dir).version == 3
