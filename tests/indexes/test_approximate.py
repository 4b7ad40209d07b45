"""ScaNN, FAISS and SymphonyQG: near exact search, and safe to load."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from realm_jax.errors import RealmError
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import (
  Blocks,
  IndexLoadError,
  QueryBatch,
  RecallError,
)
from realm_jax.indexes.scann import ScannConfig, default_leaves
from realm_jax.indexes.symphonyqg import SymphonyQgConfig
from tests.indexes.clustered import clustered

_TREE = ScannConfig(
  brute_force_below=0,
  num_leaves=64,
  num_leaves_searched=4,
  num_reordered=50,
  reordering="float32",
)
_LISTS = FaissConfig(brute_force_below=0, nprobe=8)
_GRAPH = SymphonyQgConfig(brute_force_below=0)
_QUERIES = QueryBatch.of_vectors(clustered(200, 2))


def _blocks(config):
  if config.kind == "faiss":
    pytest.importorskip("faiss").omp_set_num_threads(1)
  if config.kind == "symphonyqg":
    pytest.importorskip("rabitqlib", reason="it is an extra")
  return Blocks(3_000, clustered(3_000, 1), queries=_QUERIES)


@pytest.mark.parametrize(
  "config",
  [
    _TREE,
    dataclasses.replace(_TREE, reordering="bfloat16", dims_per_code=4),
    _LISTS,
    dataclasses.replace(_LISTS, factory="PCA24,IVF64,PQ12x4fs,RFlat"),
    _GRAPH,
  ],
)
def test_every_structure_finds_nearly_all_that_exact_search_finds(
  tmp_path, config
):
  blocks = _blocks(config)
  found = config.build(blocks, tmp_path / "index").search(_QUERIES, 8)
  scores = _QUERIES.vectors @ blocks.vectors.T
  best = np.argsort(-scores, axis=1)[:, :8]
  hits = [len({*a} & {*b}) for a, b in zip(found.rows, best, strict=True)]
  assert np.mean(hits) > 0.9 * 8
  scores = np.take_along_axis(scores, found.rows, axis=1)
  np.testing.assert_allclose(found.scores, scores, rtol=1e-2, atol=1e-2)
  # A snapshot is renamed when it is published.
  moved = (tmp_path / "index").rename(tmp_path / "published")
  loaded = config.load(moved, blocks).search(_QUERIES, 8)
  np.testing.assert_array_equal(loaded.rows, found.rows)


@pytest.mark.parametrize(
  "config, name, content",
  [
    (_TREE, "scann_assets.pbtxt", b""),
    (_TREE, "scann_docids.pkl", b"cos\nsystem\n."),
    (_TREE, "tree.json", b"{}"),
    (_LISTS, "index.faiss", b"IwFl"),
    (_LISTS, "index.faiss", None),
    (_GRAPH, "index.symphonyqg", b"\0" * 1000),
    (_GRAPH, "index.symphonyqg", None),
    (_GRAPH, "length.json", b"[]"),
  ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path, config, name, content):
  blocks = _blocks(config)
  config.build(blocks, tmp_path / "index")
  path = tmp_path / "index" / name
  path.unlink() if content is None else path.write_bytes(content)
  with pytest.raises(IndexLoadError):
    config.load(tmp_path / "index", blocks)


def test_how_much_is_searched_is_chosen_by_measuring():
  config = ScannConfig(brute_force_below=0, recall_target=0.97)
  report = config.build(_blocks(config)).report
  assert report["recall"] >= 0.97
  assert report["num_leaves"] == default_leaves(3_000) == 128
  json.dumps(report)


def test_an_index_below_its_target_is_refused_unless_it_may_be():
  config = dataclasses.replace(
    _TREE, num_leaves_searched=1, num_reordered=8, recall_target=0.999
  )
  with pytest.raises(RecallError, match=r"reaches recall@8 0\.\d+ of 0.999"):
    config.build(_blocks(config))
  allowed = dataclasses.replace(config, below_target=True)
  assert allowed.build(_blocks(config)).report["recall"] < 0.999


def test_a_missing_library_is_named(monkeypatch):
  module = "scann.scann_ops.py.scann_ops_pybind"
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(RealmError, match=r"pip install 'realm_jax\[train\]'"):
    _TREE.build(_blocks(_TREE))


@pytest.mark.parametrize(
  "factory, message",
  [
    ("HNSW8", "may find fewer than k"),
    ("IVF4,Nonsense", "FAISS cannot build 'IVF4,Nonsense'"),
  ],
)
def test_a_description_that_will_not_do_is_refused(factory, message):
  config = dataclasses.replace(_LISTS, factory=factory)
  with pytest.raises(ValueError, match=message):
    config.build(_blocks(config))
