"""ScaNN: near exact search, tuned for a recall, safe to load."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexLoadError,
  LibraryError,
  RecallError,
)
from realm_jax.indexes.scann import trees
from realm_jax.indexes.scann.config import ScannConfig, default_leaves
from tests.indexes.clustered import blocks_of, clustered, queries_of

_NUM_BLOCKS = 3_000
_FIXED = fixed_tree(
  64,
  num_leaves_searched=4,
  num_reordered=50,
  reordering="float32",
  below_target=False,
)
_QUERIES = queries_of(clustered(200, 2))


def _vectors(seed=1):
  return clustered(_NUM_BLOCKS, seed)


def _recall(found, vectors, k=8):
  scores = _QUERIES.vectors @ vectors.T
  best = np.argsort(-scores, axis=1)[:, :k]
  hits = [len(set(a) & set(b)) for a, b in zip(found.rows, best, strict=True)]
  return np.mean(hits) / k


def _built(directory, vectors, config=_FIXED):
  options = BuildOptions(directory=directory, queries=_QUERIES)
  return config.build(blocks_of(vectors), options)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
  """The files of an index, which no test may change."""
  directory = tmp_path_factory.mktemp("stored") / "scann"
  _built(directory, _vectors())
  return directory


@pytest.mark.slow
@pytest.mark.parametrize(
  "change", [{}, {"reordering": "bfloat16"}, {"dims_per_code": 4}]
)
def test_every_structure_finds_nearly_all_that_exact_search_finds(
  tmp_path, change
):
  vectors = _vectors()
  config = dataclasses.replace(_FIXED, **change)
  index = _built(tmp_path / "scann", vectors, config)
  found = index.search(_QUERIES, 8)
  assert _recall(found, vectors) > 0.95
  scores = _QUERIES.vectors @ vectors.T
  tolerance = 1e-2 if "reordering" in change else 1e-4
  np.testing.assert_allclose(
    found.scores,
    np.take_along_axis(scores, found.rows, axis=1),
    rtol=tolerance,
    atol=tolerance,
  )
  # A generation is renamed when it is published.
  moved = (tmp_path / "scann").rename(tmp_path / "published")
  loaded = config.load(moved, blocks_of(vectors)).search(_QUERIES, 8)
  np.testing.assert_array_equal(loaded.rows, found.rows)


def test_how_much_is_searched_is_chosen_by_measuring():
  config = ScannConfig(brute_force_below=0, recall_target=0.97)
  options = BuildOptions(queries=_QUERIES)
  report = config.build(blocks_of(_vectors()), options).report
  assert report["recall"] >= 0.97
  assert report["num_leaves"] == default_leaves(_NUM_BLOCKS) == 128
  json.dumps(report)


def test_an_index_below_its_target_is_refused_unless_it_may_be():
  config = dataclasses.replace(
    _FIXED, num_leaves_searched=1, num_reordered=8, recall_target=0.999
  )
  options = BuildOptions(queries=_QUERIES)
  with pytest.raises(RecallError, match=r"reaches recall@8 0\.\d+ of 0.999"):
    config.build(blocks_of(_vectors()), options)
  allowed = dataclasses.replace(config, below_target=True)
  report = allowed.build(blocks_of(_vectors()), options).report
  assert report["recall"] < 0.999


def test_the_same_vectors_give_the_same_files(tmp_path, stored):
  _built(tmp_path / "1", _vectors())
  for path in sorted(stored.iterdir()):
    assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


def test_scanns_own_builder_meets_the_target(tmp_path, monkeypatch):
  # Another version of ScaNN may not read what we write.
  monkeypatch.setattr(trees, "FORMATS_VERSION", "0.0.0")
  monkeypatch.setattr(trees, "write", None)
  config = ScannConfig(brute_force_below=0, num_leaves=64)
  index = _built(tmp_path / "scann", _vectors(), config)
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.95


@pytest.mark.parametrize("damage", ["gone", "pickle", "tree"])
def test_what_cannot_be_loaded_is_refused(tmp_path, stored, damage):
  vectors = _vectors()
  shutil.copytree(stored, tmp_path / "scann")
  if damage == "gone":
    (tmp_path / "scann" / "scann_assets.pbtxt").unlink()
  elif damage == "pickle":
    (tmp_path / "scann" / "scann_docids.pkl").write_bytes(b"cos\nsystem\n.")
  else:
    (tmp_path / "scann" / "tree.json").write_text("{}")
  with pytest.raises(IndexLoadError):
    _FIXED.load(tmp_path / "scann", blocks_of(vectors))


def test_a_missing_library_is_named(monkeypatch):
  module = "scann.scann_ops.py.scann_ops_pybind"
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(LibraryError, match="pip install scann"):
    _FIXED.build(blocks_of(_vectors()))


def test_an_exception_of_check_ends_the_build():
  class Stop(Exception):
    pass

  def check():
    raise Stop

  with pytest.raises(Stop):
    _FIXED.build(blocks_of(_vectors()), BuildOptions(check=check))
