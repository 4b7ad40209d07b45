"""`build_index`, from checkpoints to snapshots that a trainer loads."""

from pathlib import Path

import jax
import numpy as np
import pytest

from harness.jobs import (
  Job,
  JobError,
  Macro,
  free_port,
  gin_command,
  running,
  wait_until,
)
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.update import update_corpus
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.indexes.random import RandomConfig
from realm_jax.partitioning.agreement import Agreement
from realm_jax.snapshots.build import CompiledTowers, build_snapshot
from realm_jax.snapshots.embedding import CorpusEmbedder
from realm_jax.snapshots.loading import load_newest, load_snapshot
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.snapshots.store import MANIFEST, SnapshotStore
from realm_jax.snapshots.vectors import Draft, ShardLayout
from realm_jax.storage.sole_process import SoleProcessError, sole_process
from tests.json_lines import write_lines
from tests.snapshots.builds import (
  build,
  embed,
  params_of,
  save,
  snapshot_config,
)
from tests.snapshots.conftest import files_of, flip, make_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def test_one_snapshot_holds_the_vectors_of_its_checkpoint(tmp_path, corpus):
  save(tmp_path, corpus, 0, 500)
  assert build(tmp_path, corpus) == [500]
  snapshot = load_newest(tmp_path / "snapshots", corpus=corpus)
  assert (snapshot.step, snapshot.index.kind) == (500, "exact")
  params, rows = params_of(corpus, 500), np.array([0, 17, 149])
  np.testing.assert_allclose(
    snapshot.vectors(rows),
    embed(corpus, params, corpus.gather(rows, 64), "embed_blocks"),
    atol=1e-5,
  )
  # The query tower alone embeds queries; the block tower is not there.
  assert set(snapshot.query_params) == {"query_tower"}
  tokens = np.array([[2, 9, 10, 3, 0]], np.int32)
  vectors = embed(corpus, snapshot.query_params, tokens, "embed_queries")
  np.testing.assert_array_equal(
    vectors, embed(corpus, params, tokens, "embed_queries")
  )


def test_another_builder_is_refused(tmp_path, corpus, snapshots_dir):
  save(tmp_path, corpus, 500)
  with (
    sole_process(snapshots_dir, "builder"),
    pytest.raises(SoleProcessError, match="already has a builder"),
  ):
    build(tmp_path, corpus)
  assert build(tmp_path, corpus) == [500]


def test_a_builder_whose_place_was_taken_publishes_nothing(tmp_path, corpus):
  store = SnapshotStore(tmp_path / "snapshots")

  def check():
    if list(store.path(500).glob("*/embeddings-*.npy")):
      raise SoleProcessError("another builder now")

  with pytest.raises(SoleProcessError):
    build_snapshot(
      CompiledTowers(snapshot_config(), corpus),
      500,
      jax.device_put(params_of(corpus, 500)),
      store,
      agreement=Agreement("test"),
      check=check,
    )
  assert store.steps() == []


def _update(corpus, changes):
  """A new version of a corpus, by JSON Lines beside it."""
  path = Path(corpus.source).with_name("changes.jsonl")
  update_corpus([str(write_lines(path, changes))], corpus.source, tagger=None)


def test_a_corpus_update_embeds_only_the_blocks_that_changed(
  tmp_path, monkeypatch
):
  corpus = make_corpus(tmp_path / "small", num_blocks=40)
  save(tmp_path, corpus, 500)
  embed_rows, embedded = CorpusEmbedder.embed, []

  def embed_and_note(self, params, rows, **named):
    embedded.extend(rows.tolist())
    return embed_rows(self, params, rows, **named)

  monkeypatch.setattr(CorpusEmbedder, "embed", embed_and_note)
  assert build(tmp_path, corpus) == [500]
  assert sorted(embedded) == list(range(40))
  added = {"id": "new", "title": "w11", "text": "w50 w51."}
  _update(corpus, [{"id": "d7", "remove": True}, added])
  newest = corpus.newest()
  embedded.clear()
  assert build(tmp_path, corpus) == [500]
  new = newest.rows_of(np.array([block_id(newest.name, "new", 0)]))
  assert embedded == new.tolist()
  snapshot = load_snapshot(tmp_path / "snapshots", 500, corpus=corpus)
  rows = np.arange(40)
  np.testing.assert_allclose(
    snapshot.vectors(rows),
    embed(
      corpus, params_of(corpus, 500), newest.gather(rows, 64), "embed_blocks"
    ),
    atol=1e-5,
  )
  assert build(tmp_path, corpus) == []
  # What is damaged has no vectors to keep.
  flip(next(files_of(tmp_path / "snapshots", 500).glob("embeddings-*.npy")))
  _update(corpus, [{"id": "d8", "remove": True}])
  embedded.clear()
  assert build(tmp_path, corpus) == [500]
  assert len(embedded) == 39


@pytest.mark.parametrize("index", [Bm25Config(), RandomConfig()])
def test_nothing_is_embedded_for_an_index_without_vectors(
  tmp_path, corpus, monkeypatch, index
):
  save(tmp_path, corpus, 500)
  monkeypatch.setattr(CorpusEmbedder, "embed", pytest.fail)
  assert build(tmp_path, corpus, index=index) == [500]
  snapshot = load_newest(tmp_path / "snapshots", corpus=corpus)
  assert snapshot.index.kind == index.kind
  queries = QueryBatch(np.array([[2, 9, 10, 3]], np.int32))
  assert snapshot.index.search(queries, 5).rows.shape == (1, 5)
  assert snapshot.oldest_step == 500
  with pytest.raises(SnapshotError, match="has no vectors"):
    snapshot.vectors(np.array([3]))
  with pytest.raises(ValueError, match="needs the blocks' vectors"):
    load_newest(tmp_path / "snapshots", corpus=corpus, index=ExactConfig())


def test_a_builder_goes_on_with_shards_of_one_that_was_killed(
  object_store, corpus, tmp_path, monkeypatch
):
  snapshots_dir = object_store.path(f"{tmp_path.name}/snapshots")
  save(tmp_path, corpus, 500)
  settings = {"shard_blocks": 10, "snapshots_dir": snapshots_dir}
  add, added = Draft.add, []

  def add_and_note(draft, shard, *arguments, **named):
    if len(added) == 6:
      raise KeyboardInterrupt
    added.append(shard)
    add(draft, shard, *arguments, **named)

  monkeypatch.setattr(Draft, "add", add_and_note)
  with pytest.raises(KeyboardInterrupt):
    build(tmp_path, corpus, **settings)
  added.clear()
  added += [-1] * 7
  assert build(tmp_path, corpus, **settings) == [500]
  assert added[7:] == list(range(6, 15))
  store = SnapshotStore(snapshots_dir)
  alone = settings | {"snapshots_dir": tmp_path / "alone"}
  assert build(tmp_path, corpus, **alone) == [500]
  single = SnapshotStore(tmp_path / "alone").manifest(500)
  assert single.files == store.manifest(500).files
  # A builder that wakes after another took its place replaces no file.
  layout = ShardLayout.of(150, 8, dtype="float32", max_rows=10)
  late = Draft(store.path(500) / store.manifest(500).folder, layout)
  add(late, 3, np.zeros((10, 8), np.float32))
  store.verify(500)
  snapshot = load_newest(snapshots_dir, corpus=corpus)
  assert snapshot.vectors(np.arange(150)).all()
  folders = set()
  for _ in range(2):
    (store.path(500) / MANIFEST).unlink()
    assert build(tmp_path, corpus, index=Bm25Config(), **settings) == [500]
    folders.add(store.manifest(500).index_folder)
  assert len(folders) == 2
  assert load_newest(snapshots_dir, corpus=corpus).index.kind == "bm25"


def test_processes_share_a_snapshot_are_killed_and_stop_together(
  tmp_path, corpus, command_environment, quick_jobs
):
  save(tmp_path, corpus, 0)
  store = SnapshotStore(tmp_path / "snapshots")

  given = {
    "MODEL_DIR": str(tmp_path),
    "CORPUS_DIR": str(corpus.source),
    "TOKENS_PER_BATCH": 4096,
    "SHARD_BLOCKS": 3,
    "NUM_LENGTHS": 1,
    "INDEX": Macro("EXACT"),
    # The retriever of the checkpoints that `builds` saves.
    "bert.BertConfig.hidden_size": 16,
    "bert.BertConfig.num_layers": 1,
    "bert.BertConfig.intermediate_size": 32,
    "bert.BertConfig.max_positions": 64,
    "retriever.BertRetriever.projection_size": 8,
    "retriever.BertRetriever.shared_towers": False,
  }

  def group():
    command = gin_command(
      *("build_index", ["gin/models/tiny.gin", "gin/runs/build_index.gin"]),
      f"--coordinator_address=localhost:{free_port()}",
      *("--num_processes=2", "--heartbeat_timeout_seconds=10"),
      **given,
    )
    return [
      Job(
        f"builder {index}",
        [*command, f"--process_id={index}"],
        log=tmp_path / f"{index}.log",
        environment=command_environment,
      )
      for index in range(2)
    ]

  def shards():
    files = store.path(0).glob("*/embeddings-*.npy")
    return [int(path.name.split("-")[1]) for path in files]

  first, second = group(), group()
  with running(*first):
    wait_until(
      lambda: any(shard % 2 for shard in shards()),
      what="shards of both processes",
      jobs=tuple(first),
    )
    first[1].kill()
    with pytest.raises(JobError):
      wait_until(first[0].ended, what="end of the other process")
    assert store.steps() == []
  with running(*second):
    wait_until(
      lambda: "waiting for the next" in second[0].last_output(),
      what="builder that waits",
      jobs=tuple(second),
    )
    assert second[1].terminate() == 0
    wait_until(second[0].ended, what="end of the group")
  assert "published snapshot 0: 150 blocks" in second[0].log.read_text()
  assert store.verify(0).num_blocks == 150


def test_a_builder_of_exact_indexes_in_a_bucket_reads_no_vector_again(
  object_store, corpus, tmp_path, monkeypatch
):
  snapshots_dir = object_store.path(f"{tmp_path.name}/snapshots")
  save(tmp_path, corpus, 500)
  with monkeypatch.context() as patch, object_store.counted() as requests:
    patch.setattr(ExactConfig, "build", pytest.fail)
    assert build(tmp_path, corpus, snapshots_dir=snapshots_dir) == [500]
  assert not [r for r in requests if ".npy" in r and "alt=media" in r]
  with object_store.counted() as requests:
    loaded = load_newest(snapshots_dir, corpus=corpus)
  assert [r for r in requests if ".npy" in r and "alt=media" in r]
  assert loaded.manifest.recall == {}
