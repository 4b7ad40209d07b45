"""`build_index` while the corpus is updated."""

import json
from pathlib import Path

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.generations.building.current_builder import CurrentBuilder
from realm_jax.generations.building.generation_builder import GenerationBuilder
from realm_jax.generations.building.sidecar import Sidecar, SidecarConfig
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from tests.generations.builds import (
  StopAfterWaits,
  build,
  build_until_idle,
  embed,
  generation_config,
  params_of,
  save,
)
from tests.generations.conftest import PIECES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


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
  save(tmp_path, corpus, 0)
  assert build(tmp_path, corpus) == [0]
  added = {"id": "new", "title": "w1", "text": "w50 w51."}
  _update(corpus, [{"id": "d7", "remove": True}, added])
  # The checkpoint is the same, and what is new is found all the same.
  assert build(tmp_path, corpus) == [0]
  assert build(tmp_path, corpus) == []
  generation = load_generation(generations_dir, 0, corpus=corpus)
  newest = corpus.newest()
  assert generation.corpus is newest
  assert generation.manifest.corpus_version == newest.version == 2
  assert generation.num_blocks == newest.num_blocks == 40
  row = newest.rows_of(np.array([block_id(newest.name, "new", 0)]))
  np.testing.assert_allclose(
    generation.vectors(row),
    embed(corpus, params_of(corpus, 0), newest.gather(row, 64), "embed_blocks"),
    atol=1e-5,
  )


def test_a_generation_of_an_earlier_version_stays_where_none_is_skipped(
  tmp_path,
):
  corpus = _small_corpus(tmp_path)
  save(tmp_path, corpus, 0)
  assert build(tmp_path, corpus) == [0]
  save(tmp_path, corpus, 500, generation=0)
  _update(corpus, [{"id": "d7", "remove": True}])
  assert build_until_idle(tmp_path, corpus, mode="every") == [500]
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
  manifest = Path(corpus.source) / "corpus.json"
  away = manifest.rename(manifest.with_name("away"))
  versions = []

  def make_builder(version):
    versions.append(version.version)
    return GenerationBuilder(
      generation_config(), version, generations_dir=tmp_path / "generations"
    )

  def put_back():
    assert versions == [1]
    away.rename(manifest)

  Sidecar(
    SidecarConfig(),
    CurrentBuilder(corpus, make_builder),
    checkpoints=CheckpointStore(tmp_path),
    generations_dir=tmp_path / "generations",
    stop=StopAfterWaits(
      3,
      actions=[
        put_back,
        lambda: _update(corpus, [{"id": "d7", "remove": True}]),
      ],
    ),
  ).run()
  assert versions == [1, 2]
