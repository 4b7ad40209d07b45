"""What a run reads and searches when its corpus has several versions."""

import contextlib
import functools
import json
import shutil
import threading

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.manifest import manifest_path
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.generations.loading import load_generation
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.store import FOLDER
from realm_jax.indexes.protocol import SearchResult
from realm_jax.training.checkpointing import RetrievedIds, examples_of_run
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import GenerationSchedule
from realm_jax.training.goodput import Goodput
from tests import tiny_world


@pytest.fixture
def corpus(world, tmp_path) -> Corpus:
  """A copy of the tiny world's corpus, at version 1."""
  return Corpus.open(shutil.copytree(world.corpus_dir, tmp_path / "corpus"))


def _remove(corpus: Corpus, *names: str) -> Corpus:
  """The version without some documents."""
  lines = corpus.source.parent / "changes.jsonl"
  changes = [json.dumps({"id": name, "remove": True}) for name in names]
  lines.write_text("\n".join(changes))
  update_corpus([str(lines)], corpus.source)
  return corpus.newest()


def _save(model_dir, corpus: Corpus, **changes) -> None:
  place = {
    "format": np.int64(2),
    "corpus_version": np.int64(corpus.version),
    "corpus_fingerprint": np.frombuffer(
      bytes.fromhex(corpus.fingerprint), np.uint8
    ),
    **changes,
  }
  store = CheckpointStore(model_dir)
  store.save(4, {"loop": place})
  store.close()


def test_what_was_found_keeps_its_blocks_in_another_version(corpus):
  newest = _remove(corpus, "p0", "p3")
  ids = [block_id("corpus", name, 0) for name in ("p1", "p9")]
  rows = corpus.rows_of(np.array([ids]))
  found = SearchResult(rows=rows, scores=np.array([[2, 1]], np.float32))
  blocks = RetrievedIds.of(found, corpus)
  again = blocks.in_rows(newest)
  assert (again.rows != rows).all()
  np.testing.assert_array_equal(
    newest.gather(again.rows, 40), corpus.gather(rows, 40)
  )
  np.testing.assert_array_equal(again.scores, found.scores)
  # A block that is gone: all is to be searched anew.
  removed = np.array([[block_id("corpus", "p3", 0)]])
  gone = RetrievedIds(removed, found.scores[:, :1])
  assert gone.in_rows(newest) is None


@pytest.mark.slow
def test_a_run_begins_with_the_newest_version_and_stays_with_it(
  corpus, tmp_path
):
  model_dir = tmp_path / "run"
  begun = examples_of_run(model_dir, corpus.source)
  assert begun.version == 1
  assert not model_dir.exists()
  _save(model_dir, begun)
  _remove(corpus, "p0")
  assert examples_of_run(model_dir, corpus.source).fingerprint == (
    begun.fingerprint
  )
  assert examples_of_run(tmp_path / "another", corpus.source).version == 2
  (corpus.source / manifest_path(1)).unlink()
  with pytest.raises(CheckpointError, match=r"from version 1 .*\[2\].*INITIAL"):
    examples_of_run(model_dir, corpus.source)


@pytest.mark.slow
def test_a_generation_with_fewer_blocks_than_a_query_wants_is_not_used(
  world, corpus, tmp_path
):
  world.save_checkpoint(tmp_path)
  _remove(corpus, *(f"p{i}" for i in range(20)))
  world.build_generation(tmp_path, corpus_dir=corpus.source)
  load = functools.partial(load_generation, tmp_path / FOLDER, corpus=corpus)

  def first(num_searched):
    schedule = GenerationSchedule(
      load,
      RefreshConfig(),
      model_dir=tmp_path,
      num_searched=num_searched,
      every_steps=1,
      decisions=Decisions(threading.Event(), num_steps=1, save_every_steps=1),
      goodput=Goodput(),
    )
    with contextlib.closing(schedule):
      return schedule.start(0, None)

  generation = first(num_searched=6)
  assert generation.corpus.version == 2
  assert generation.num_blocks == len(tiny_world.documents()) - 20
  with pytest.raises(GenerationError, match="has 6 blocks since version 2"):
    first(num_searched=7)
