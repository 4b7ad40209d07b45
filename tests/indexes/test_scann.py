"""ScaNN: near exact search, tuned for a recall, safe to load."""

import dataclasses
import json
import sys
from unittest import mock

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
from tests.indexes.clustered import (
  blocks_of,
  check_found,
  clustered,
  queries_of,
)

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


def _built(directory, vectors, config=_FIXED):
  options = BuildOptions(directory=directory, queries=_QUERIES)
  return config.build(blocks_of(vectors), options)


@pytest.mark.parametrize(
  "change", [{}, {"reordering": "bfloat16", "dims_per_code": 4}]
)
def test_every_structure_finds_nearly_all_that_exact_search_finds(
  tmp_path, change
):
  vectors, config = _vectors(), dataclasses.replace(_FIXED, **change)
  found = _built(tmp_path / "scann", vectors, config).search(_QUERIES, 8)
  tolerance = 1e-2 if change else 1e-4
  check_found(found, _QUERIES, vectors, min_recall=0.95, tolerance=tolerance)
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


def test_scanns_own_builder_meets_the_target(tmp_path, monkeypatch):
  # Another version of ScaNN may not read what we write.
  monkeypatch.setattr(trees, "FORMATS_VERSION", "0.0.0")
  monkeypatch.setattr(trees, "write", None)
  config = ScannConfig(brute_force_below=0, num_leaves=64)
  index = _built(tmp_path / "scann", _vectors(), config)
  found = index.search(_QUERIES, 8)
  check_found(found, _QUERIES, _vectors(), min_recall=0.95, tolerance=1e-2)


@pytest.mark.parametrize(
  "name, content",
  [
    ("scann_assets.pbtxt", b""),
    ("scann_docids.pkl", b"cos\nsystem\n."),
    ("tree.json", b"{}"),
  ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path, name, content):
  config = dataclasses.replace(_FIXED, num_leaves=16)
  vectors = _vectors()[:500]
  _built(tmp_path / "scann", vectors, config)
  (tmp_path / "scann" / name).write_bytes(content)
  with pytest.raises(IndexLoadError):
    config.load(tmp_path / "scann", blocks_of(vectors))


def test_a_missing_library_is_named(monkeypatch):
  module = "scann.scann_ops.py.scann_ops_pybind"
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(LibraryError, match="pip install scann"):
    _FIXED.build(blocks_of(_vectors()))


def test_an_exception_of_check_ends_the_build():
  check = mock.Mock(side_effect=KeyboardInterrupt)
  with pytest.raises(KeyboardInterrupt):
    _FIXED.build(blocks_of(_vectors()), BuildOptions(check=check))
