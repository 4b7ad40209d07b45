"""The index builder, from checkpoints to generations that a trainer loads."""

import contextlib
import dataclasses
import errno
import functools
import json
import logging
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.generations import builder, layout
from realm_jax.generations import manifest as manifests
from realm_jax.generations.loaded import load_generation, load_newest
from realm_jax.generations.making import EmbeddingConfig
from realm_jax.generations.partial_refresh import PartialRefresh
from realm_jax.generations.publisher import DiskFullError
from realm_jax.generations.retrieved import RetrievedBlocks
from realm_jax.generations.shared_work import SharedWork
from realm_jax.generations.watcher import GenerationWatcher
from realm_jax.indexes import npy
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from tests.generations.conftest import PIECES, make_corpus

pytestmark = pytest.mark.slow

_BERT = BertConfig(
  hidden_size=16,
  num_layers=1,
  num_heads=2,
  intermediate_size=32,
  max_positions=64,
)
_RETRIEVER = Retriever(_BERT, projection_size=8, shared_towers=False)
_CONFIG = EmbeddingConfig(
  tokens_per_batch=2048,
  query_length=16,
  recall_queries=32,
  recall_at=(1, 8, 1000),
)


def _retriever(corpus):
  return _RETRIEVER.for_vocabulary(vocab_size=corpus.vocab_size, separator_id=3)


@functools.cache
def _initial(retriever):
  """One initial value, compiled once; a step's parameters are drawn near."""
  tokens = jnp.zeros((1, 4), jnp.int32)
  boxed = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)["params"]
  return jax.device_get(flax.linen.unbox(boxed))


def _params(corpus, step):
  rng = np.random.default_rng(step)
  return jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape).astype(x.dtype),
    _initial(_retriever(corpus)),
  )


def _embed(corpus, params, token_ids, method):
  apply = jax.jit(_retriever(corpus).apply, static_argnames="method")
  return np.asarray(apply({"params": params}, token_ids, method=method))


def _save(model_dir, corpus, *steps, generation=-1, keep=100):
  store = CheckpointStore(model_dir, keep=keep, read_only=False)
  for step in steps:
    store.save(
      step,
      {
        "retriever": _params(corpus, step),
        "loop": {"generation": np.int64(generation), "seed": np.int64(0)},
      },
    )
  store.close()


def _build(model_dir, corpus, **settings):
  defaults = {"index": ExactConfig(), "config": _CONFIG, "once": True}
  return builder.build_index(
    model_dir=model_dir,
    corpus_dir=corpus.directory,
    poll_seconds=0.02,
    **({"retriever": _RETRIEVER} | defaults | settings),
  )


@pytest.mark.parametrize(
  "index",
  [
    ExactConfig(),
    ScannConfig(),
    ScannConfig(brute_force_below=0, num_leaves_searched=4),
    Bm25Config(),
    RandomConfig(),
  ],
  ids=["exact", "scann", "scann tree", "bm25", "random"],
)
def test_one_generation_holds_the_vectors_of_its_checkpoint(
  tmp_path, corpus, index
):
  _save(tmp_path, corpus, 0, 500)
  assert _build(tmp_path, corpus, index=index) == [500]
  generation = load_newest(tmp_path / "generations", corpus=corpus)
  assert generation.step == 500
  assert generation.index.kind == index.kind
  params = _params(corpus, 500)
  rows = np.array([0, 17, 149])
  expected = _embed(corpus, params, corpus.gather(rows, 64), "embed_blocks")
  np.testing.assert_allclose(generation.vectors(rows), expected, atol=1e-5)
  # The query tower alone embeds queries; the block tower is not there.
  assert set(generation.query_params) == {"query_tower"}
  tokens = np.array([[2, 9, 10, 3, 0]], np.int32)
  vectors = _embed(corpus, generation.query_params, tokens, "embed_queries")
  np.testing.assert_array_equal(
    vectors, _embed(corpus, params, tokens, "embed_queries")
  )
  found = generation.index.search(QueryBatch(tokens, vectors), 3)
  assert found.rows.shape == (1, 3)
  manifest = generation.manifest
  assert manifest.corpus_fingerprint == corpus.fingerprint
  assert manifest.embed_seconds > 0
  if generation.index.needs_vectors:
    assert set(manifest.recall) == {"1", "8"}
    assert all(0.8 < recall <= 1 for recall in manifest.recall.values())
  else:
    assert manifest.recall == {}


def test_the_same_checkpoint_makes_the_same_bytes(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  files = []
  for name in ("a", "b"):
    _build(
      tmp_path,
      corpus,
      # What is left open would be chosen by times.
      index=ScannConfig(
        brute_force_below=0,
        below_target=True,
        num_leaves=8,
        num_leaves_searched=4,
        num_reordered=50,
        reordering="bfloat16",
        spherical=False,
        soar_lambda=0.0,
        avq_threshold=0.0,
        anisotropic_threshold=0.0,
      ),
      generations_dir=tmp_path / name,
    )
    path = layout.path_of(tmp_path / name, 500) / layout.MANIFEST
    files.append(json.loads(path.read_text())["files"])
  assert files[0] == files[1]


def test_what_stands_is_not_made_again(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  assert _build(tmp_path, corpus) == [500]
  assert _build(tmp_path, corpus) == []


def test_other_settings_or_another_corpus_replace_it(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  assert _build(tmp_path, corpus) == [500]
  assert _build(tmp_path, corpus, index=ScannConfig()) == [500]
  edited = make_corpus(tmp_path / "edited", num_blocks=151, seed=5)
  assert _build(tmp_path, edited, index=ScannConfig()) == [500]
  generations_dir = tmp_path / "generations"
  assert load_generation(generations_dir, 500, corpus=edited).num_blocks == 151


def _update(corpus, changes):
  """A new version of a corpus, by JSON Lines beside it."""
  path = Path(corpus.source).with_name("changes.jsonl")
  path.write_text("".join(json.dumps(change) + "\n" for change in changes))
  update_corpus([str(path)], corpus.source, tagger=None)


def _small_corpus(tmp_path):
  words = [f"w{i}" for i in range(59)]
  rows = [
    {"id": f"d{i}", "title": "w0", "text": " ".join(words[i : i + 6]) + "."}
    for i in range(40)
  ]
  (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
  # A full stop is in no word.
  (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, ".", *"w0123456789"]))
  build_corpus(
    [str(tmp_path / "rows.jsonl")],
    tmp_path / "small",
    vocab=str(tmp_path / "vocab.txt"),
    block_length=32,
    tagger=None,
  )
  return Corpus.open(tmp_path / "small")


def test_a_generation_is_of_the_newest_version_of_the_corpus(tmp_path):
  corpus = _small_corpus(tmp_path)
  generations_dir = tmp_path / "generations"
  _save(tmp_path, corpus, 0)
  assert _build(tmp_path, corpus) == [0]
  added = {"id": "new", "title": "w1", "text": "w50 w51."}
  _update(corpus, [{"id": "d7", "remove": True}, added])
  # The checkpoint is the same, and what is new is found all the same.
  assert _build(tmp_path, corpus) == [0]
  assert _build(tmp_path, corpus) == []
  generation = load_generation(generations_dir, 0, corpus=corpus)
  newest = corpus.newest()
  assert generation.corpus is newest
  assert generation.manifest.corpus_version == newest.version == 2
  assert generation.num_blocks == newest.num_blocks == 40
  row = newest.rows_of(np.array([block_id("new", 0)]))
  np.testing.assert_allclose(
    generation.vectors(row),
    _embed(corpus, _params(corpus, 0), newest.gather(row, 64), "embed_blocks"),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  "settings, stays",
  [({}, False), ({"checkpoint_step": 1000}, True), ({"mode": "every"}, True)],
)
def test_shards_stay_as_long_as_a_restart_may_use_them(
  tmp_path, corpus, settings, stays
):
  _save(tmp_path, corpus, 500, 1000)
  shards = tmp_path / "generations" / ".shards-00000500-0123456789abcdef"
  gone = shards.with_name(".shards-00000300-0123456789abcdef")
  for path in (shards, gone):
    path.mkdir(parents=True)
  assert _build(tmp_path, corpus, **settings) == [1000]
  assert shards.exists() == stays
  # Its checkpoint is not there any more.
  assert not gone.exists()


def test_a_full_disk_is_said_while_shards_are_written(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  full = OSError(errno.ENOSPC, "No space left on device")
  with (
    mock.patch.object(npy, "save", side_effect=full),
    pytest.raises(DiskFullError, match="no room for generation 500"),
  ):
    _build(tmp_path, corpus)
  assert _build(tmp_path, corpus) == [500]


def test_a_shard_that_is_damaged_before_publication_is_embedded_again(
  tmp_path, corpus
):
  _save(tmp_path, corpus, 500)
  place, damaged = SharedWork.place, []

  def place_and_damage(work, directory):
    stored = place(work, directory)
    if not damaged:
      path = directory / stored.shards[1].path
      data = bytearray(path.read_bytes())
      data[-1] ^= 1
      path.write_bytes(data)
      damaged.append(path.name)
    return stored

  config = dataclasses.replace(_CONFIG, shard_blocks=50)
  with mock.patch.object(SharedWork, "place", place_and_damage):
    assert _build(tmp_path, corpus, config=config) == [500]
  assert len(damaged) == 1
  generation = load_newest(tmp_path / "generations", corpus=corpus)
  rows = np.arange(150)
  np.testing.assert_allclose(
    generation.vectors(rows),
    _embed(
      corpus, _params(corpus, 500), corpus.gather(rows, 64), "embed_blocks"
    ),
    atol=1e-5,
  )


def test_a_generation_of_an_earlier_version_stays_where_none_is_skipped(
  tmp_path, monkeypatch
):
  corpus = _small_corpus(tmp_path)
  _save(tmp_path, corpus, 0)
  assert _build(tmp_path, corpus) == [0]
  _save(tmp_path, corpus, 500, generation=0)
  _update(corpus, [{"id": "d7", "remove": True}])
  # It is stopped once it has nothing to do.
  waiting = threading.Event()
  monkeypatch.setattr(
    builder._Waiting, "say", lambda self, has_checkpoint: waiting.set()
  )
  monkeypatch.setattr(
    builder,
    "stop_on_sigterm",
    lambda: contextlib.nullcontext(waiting),
  )
  assert _build(tmp_path, corpus, once=False, mode="every") == [500]
  versions = [
    manifests.read(layout.path_of(tmp_path / "generations", step))
    for step in (0, 500)
  ]
  assert [manifest.corpus_version for manifest in versions] == [1, 2]
  for step, version in ((0, 1), (500, 2)):
    loaded = load_generation(tmp_path / "generations", step, corpus=corpus)
    assert loaded.corpus.version == version
    assert loaded.num_blocks == loaded.corpus.num_blocks


def test_a_corpus_that_is_gone_for_a_while_stops_nobody(tmp_path):
  corpus = _small_corpus(tmp_path)
  assert builder._newest_version(corpus) is corpus
  manifest = Path(corpus.source) / "corpus.json"
  away = manifest.rename(manifest.with_name("away"))
  assert builder._newest_version(corpus) is corpus
  away.rename(manifest)
  _update(corpus, [{"id": "d7", "remove": True}])
  assert builder._newest_version(corpus).version == 2


def test_damage_is_mended_by_starting_again(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  _build(tmp_path, corpus)
  generations_dir = tmp_path / "generations"
  path = generations_dir / "00000500" / "embeddings-00000-of-00001.npy"
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  assert _build(tmp_path, corpus) == [500]
  assert load_generation(generations_dir, 500, corpus=corpus).step == 500


_PARTIAL = PartialRefresh(
  fraction=0.4, sample_fraction=0.1, drift_correction=False, full_every=3
)


def _nearby(model_dir, corpus, *steps):
  """Checkpoints between which vectors move little."""
  # Of values that tell blocks apart, as a trained model's do.
  initial = _params(corpus, 7)
  params = {}
  store = CheckpointStore(model_dir, keep=100, read_only=False)
  for step in steps:
    rng = np.random.default_rng(step)
    params[step] = jax.tree.map(
      lambda x, rng=rng: (
        x + 0.0003 * rng.standard_normal(x.shape).astype(x.dtype)
      ),
      initial,
    )
    loop = {"generation": np.int64(-1), "seed": np.int64(0)}
    store.save(step, {"retriever": params[step], "loop": loop})
  store.close()
  return params


def _embedded_with(corpus, params):
  rows = np.arange(corpus.num_blocks)
  return _embed(corpus, params, corpus.gather(rows, 64), "embed_blocks")


def test_a_partial_refresh_embeds_a_part_and_takes_the_rest(tmp_path, corpus):
  params = _nearby(tmp_path, corpus, 0, 500, 1000, 1500)
  generations_dir = tmp_path / "generations"
  counts = RetrievedBlocks(tmp_path)
  # All but the sample go by how often they were retrieved.
  counts.add(np.repeat(np.arange(30), 100)[None], corpus)
  counts.save(500, checkpoints=[0])
  by_step = {s: _embedded_with(corpus, p) for s, p in params.items()}
  for step in (0, 500, 1000, 1500):
    _build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=step)
    generation = load_generation(generations_dir, step, corpus=corpus)
    manifest = generation.manifest
    rows = np.arange(150)
    steps = generation.embeddings.steps(rows)
    for old in np.unique(steps).tolist():
      np.testing.assert_allclose(
        generation.vectors(rows[steps == old]),
        by_step[old][steps == old],
        atol=1e-5,
      )
    assert manifest.oldest_step == generation.oldest_step == steps.min()
    if step in (0, 1500):
      # The first, and the third after it.
      assert manifest.partial is None and set(steps) == {step}
      continue
    assert manifest.partial.base == step - 500
    assert manifest.partial.partials == step // 500
    fresh = steps == step
    assert manifest.partial.embedded_blocks == fresh.sum()
    tokens = corpus.lengths
    assert 0.3 < tokens[fresh].sum() / tokens.sum() < 0.5
    if step == 500:
      assert fresh[:30].all()


@pytest.mark.parametrize("case", ["damaged", "another model", "missing"])
def test_without_a_sound_earlier_generation_all_are_embedded(
  tmp_path, corpus, caplog, case
):
  _nearby(tmp_path, corpus, 0, 500)
  generations_dir = tmp_path / "generations"
  if case != "missing":
    _build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=0)
  path = generations_dir / "00000000" / "embeddings-00000-of-00001.npy"
  other = {}
  if case == "damaged":
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
  if case == "another model":
    other = {"retriever": dataclasses.replace(_RETRIEVER, normalize=True)}
  with caplog.at_level(logging.INFO, logger="absl"):
    _build_without_mending(tmp_path, corpus, partial=_PARTIAL, **other)
  generation = load_generation(generations_dir, 500, corpus=corpus)
  assert generation.manifest.partial is None
  assert generation.oldest_step == 500
  assert "generation 500 embeds every block" in caplog.text


def _build_without_mending(*args, **settings):
  """As where the damage comes while the builder runs."""
  with mock.patch.object(builder, "remove_damaged"):
    return _build(*args, **settings)


def test_another_version_of_the_corpus_embeds_what_is_new_in_it(
  tmp_path, corpus
):
  _nearby(tmp_path, corpus, 0, 500)
  _build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=0)
  # The same blocks, and ten more.
  longer = make_corpus(tmp_path / "longer", num_blocks=160)
  np.testing.assert_array_equal(longer.token_ids(149), corpus.token_ids(149))
  _build(tmp_path, longer, partial=_PARTIAL)
  generation = load_newest(tmp_path / "generations", corpus=longer)
  assert generation.manifest.partial.new_blocks == 10
  steps = generation.embeddings.steps(np.arange(160))
  assert (steps[150:] == 500).all() and (steps[:150] == 0).sum() > 60


def test_without_rename_a_builder_works_in_a_scratch_of_its_own(
  tmp_path, corpus
):
  params = _nearby(tmp_path, corpus, 0, 500)
  generations_dir = tmp_path / "generations"
  with mock.patch.object(layout, "is_remote", return_value=True):
    for step in (0, 500):
      _build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=step)
    generation = load_newest(generations_dir, corpus=corpus)
  assert not list(generations_dir.glob(".*"))
  assert generation.manifest.folder.startswith("build-")
  assert generation.manifest.partial.base == 0
  rows = np.arange(150)
  steps = generation.embeddings.steps(rows)
  for step, its in params.items():
    np.testing.assert_allclose(
      generation.vectors(rows[steps == step]),
      _embedded_with(corpus, its)[steps == step],
      atol=1e-5,
    )


def test_a_checkpoint_of_another_model_is_refused(tmp_path, corpus):
  _save(tmp_path, corpus, 500)
  with pytest.raises(CheckpointError, match="does not fit this model"):
    builder.build_index(
      model_dir=tmp_path,
      corpus_dir=corpus.directory,
      retriever=Retriever(_BERT, projection_size=12, shared_towers=False),
      index=ExactConfig(),
      config=_CONFIG,
      once=True,
    )
  assert layout.published_steps(tmp_path / "generations") == []


def test_a_checkpoint_that_is_removed_while_it_is_read_is_passed_over(
  tmp_path, corpus, monkeypatch
):
  _save(tmp_path, corpus, 500, 1000)
  newest = tmp_path / "checkpoints" / "1000"
  # As a trainer removes it: the files first, the folder last, while the
  # builder waits for that.
  shutil.rmtree(newest / "retriever")
  waits = []

  def remove(seconds):
    waits.append(seconds)
    shutil.rmtree(newest)

  monkeypatch.setattr(builder.time, "sleep", remove)
  assert _build(tmp_path, corpus) == [500]
  assert len(waits) == 1


def test_a_checkpoint_that_will_not_come_is_refused(tmp_path, corpus):
  _save(tmp_path, corpus, 500, 1000)
  with pytest.raises(CheckpointError, match=r"step 700.*\[500, 1000\]"):
    _build(tmp_path, corpus, checkpoint_step=700)


def test_an_unknown_mode_is_refused(tmp_path, corpus):
  with pytest.raises(ValueError, match="mode='all'"):
    _build(tmp_path, corpus, mode="all")


@pytest.mark.parametrize(
  "checkpoints, standing, needed, every, expected",
  [
    ([], set(), set(), False, None),
    ([0], set(), set(), False, 0),
    ([0, 500, 1000], {0}, set(), False, 1000),
    ([0, 500, 1000], {0}, set(), True, 500),
    ([0, 500, 1000], {0, 500, 1000}, set(), True, None),
    ([0, 500, 1000], {1000}, set(), False, None),
    # A run that resumes from 1000 searches generation 500 first.
    ([0, 500, 1000], {1000}, {500}, False, 500),
    ([0, 500, 1000], set(), {500}, False, 500),
    # Its checkpoint is gone: nothing can be done for it.
    ([0, 1000], {1000}, {500}, False, None),
  ],
)
def test_which_checkpoint_comes_next(
  checkpoints, standing, needed, every, expected
):
  step = builder.next_step(
    checkpoints, standing=standing, needed=needed, every=every
  )
  assert step == expected


def _until(condition, seconds=120):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, "waited in vain"
    time.sleep(0.02)


INDEXES = {
  "exact": ExactConfig(),
  "scann": ScannConfig(
    brute_force_below=0,
    recall_target=0.1,
    num_leaves=8,
    num_leaves_searched=8,
    num_reordered=100,
    reordering="float32",
    spherical=True,
    soar_lambda=0.0,
    avq_threshold=0.0,
    anisotropic_threshold=0.0,
  ),
}
_SIDECAR = """
import dataclasses
import sys
from absl import logging
from tests.generations import test_builder
from realm_jax.corpus.store import Corpus
logging.set_verbosity(logging.INFO)
logging.use_absl_handler()
published = test_builder._build(
  sys.argv[1], Corpus.open(sys.argv[2]), once=False, mode=sys.argv[3],
  keep_generations=1,
  retry_seconds=0.05,
  index=test_builder.INDEXES[sys.argv[5]],
  config=dataclasses.replace(
    test_builder._CONFIG, shard_blocks=int(sys.argv[4])
  ),
)
print("published", published, flush=True)
"""


def _start(
  model_dir, corpus, mode, environment, *, shard_blocks=1 << 18, index="exact"
):
  given = [model_dir, corpus.directory, mode, str(shard_blocks), index]
  return subprocess.Popen(
    [sys.executable, "-c", _SIDECAR, *given],
    cwd=Path(__file__).parents[2],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=environment,
    text=True,
  )


def test_a_sidecar_waits_follows_and_stops_when_told(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  process = _start(tmp_path, corpus, "every", command_environment)
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(process.stderr))
  reader.start()
  try:
    _until(lambda: any("no checkpoint yet" in line for line in lines))
    _save(tmp_path, corpus, 0, 500, keep=1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    _save(tmp_path, corpus, 1000, generation=500, keep=1)
    # 500's checkpoint is gone, but 1000's names its generation.
    _until(lambda: layout.published_steps(generations_dir) == [0, 500, 1000])
    _save(tmp_path, corpus, 1500, generation=1000, keep=1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 1000, 1500])
  finally:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    reader.join()
  assert process.returncode == 0
  assert "published [0, 500, 1000, 1500]" in output
  assert not list(generations_dir.glob(".tmp-*"))


def _files(generations_dir, step):
  manifest = manifests.read(layout.path_of(generations_dir, step))
  return manifest.files, manifest.embeddings


def test_two_sidecars_share_a_generation_and_one_is_killed_at_it(
  tmp_path, corpus, command_environment
):
  _save(tmp_path, corpus, 0)
  generations_dir = tmp_path / "generations"
  jobs = [
    _start(tmp_path, corpus, "every", command_environment, shard_blocks=4)
    for _ in range(2)
  ]
  try:
    _until(lambda: layout.published_steps(generations_dir) == [0])
    _save(tmp_path, corpus, 500)
    _until(lambda: list(generations_dir.glob(".shards-00000500-*/*.json")))
    jobs[0].kill()
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    _until(lambda: not list(generations_dir.glob(".shards-*")))
  finally:
    for job in jobs:
      job.kill()
      job.communicate()
  together = _files(generations_dir, 500)
  assert len(together[1]) == 38
  # One alone, of the same devices, makes the same bytes.
  shutil.rmtree(generations_dir)
  alone = _start(
    tmp_path, corpus, "newest", command_environment, shard_blocks=4
  )
  try:
    _until(lambda: layout.published_steps(generations_dir) == [500])
  finally:
    alone.kill()
    alone.communicate()
  assert _files(generations_dir, 500) == together


def _flip(path):
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)


def test_a_disk_fills_up_at_any_file_and_has_room_again(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  _save(tmp_path, corpus, 0)
  process = _start(
    tmp_path, corpus, "every", command_environment, index="scann"
  )
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(process.stderr))
  reader.start()

  def limit(size):
    # As from a full disk, the process gets an error at a file above it.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, -1))

  try:
    _until(lambda: layout.published_steps(generations_dir) == [0])
    before, _ = _files(generations_dir, 0)
    sizes = sorted({file.size for file in before})
    limit(sizes[0] - 1)
    _save(tmp_path, corpus, 500)
    for size in sizes[:-1]:
      limit(size)
      del lines[:]
      _until(lambda: any("no room for generation 500" in s for s in lines))
      assert process.poll() is None
    assert _files(generations_dir, 0)[0] == before
    load_generation(generations_dir, 0, corpus=corpus)
    limit(-1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    load_generation(generations_dir, 500, corpus=corpus)
    # What a reader finds damaged, of the size that it had, is made again.
    _flip(generations_dir / "00000500" / "scann" / "dataset.npy")
    load = functools.partial(load_generation, generations_dir, corpus=corpus)
    with GenerationWatcher(generations_dir, load) as watcher:
      _until(lambda: watcher.newest() is not None)
      _until(lambda: watcher.newest().step == 500)
  finally:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    reader.join()
  assert process.returncode == 0
  assert not list(generations_dir.glob(".tmp-*"))


def test_a_killed_sidecar_leaves_what_it_published_and_its_successor_goes_on(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  _save(tmp_path, corpus, 0)
  process = _start(tmp_path, corpus, "newest", command_environment)
  _until(lambda: layout.published_steps(generations_dir) == [0])
  _save(tmp_path, corpus, 500)
  time.sleep(0.05)
  process.kill()
  process.communicate()
  for step in layout.published_steps(generations_dir):
    load_generation(generations_dir, step, corpus=corpus)
  _build(tmp_path, corpus)
  assert load_newest(generations_dir, corpus=corpus).step == 500
