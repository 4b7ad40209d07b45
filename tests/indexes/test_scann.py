"""ScaNN: near exact search, tuned for a recall, safe to load."""

import dataclasses
import importlib.metadata
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
  reuse=True,
)
_QUERIES = queries_of(clustered(200, 2))


def _vectors(seed=1):
  return clustered(_NUM_BLOCKS, seed)


def _recall(found, vectors, k=8):
  scores = _QUERIES.vectors @ vectors.T
  best = np.argsort(-scores, axis=1)[:, :k]
  hits = [len(set(a) & set(b)) for a, b in zip(found.rows, best, strict=True)]
  return np.mean(hits) / k


def _built(directory, vectors, config=_FIXED, previous=None):
  return config.build(
    blocks_of(vectors),
    BuildOptions(directory=directory, queries=_QUERIES, previous=previous),
  )


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


@pytest.mark.slow
def test_open_settings_are_chosen_by_measuring():
  vectors = _vectors()
  config = ScannConfig(brute_force_below=0, recall_target=0.97)
  report = config.build(
    blocks_of(vectors), BuildOptions(queries=_QUERIES)
  ).report
  assert report["recall"] >= 0.97
  tried = {trial["num_leaves"] for trial in report["trials"]}
  assert report["num_leaves"] in tried
  assert tried > {default_leaves(_NUM_BLOCKS)}
  point = {key: report[key] for key in report["curve"][0]}
  assert point in report["curve"] and len(report["curve"]) > 3
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


def test_leaves_and_codebooks_are_reused_while_they_meet_the_target(
  tmp_path, stored
):
  moved = (1.01 * _vectors()).astype(np.float32)
  config = dataclasses.replace(_FIXED, num_leaves=None)
  index = _built(tmp_path / "1", moved, config, stored)
  assert index.report["trained_for"] == "the generation before"
  assert _recall(index.search(_QUERIES, 8), moved) > 0.95
  before, after = (
    trees.read_trained(directory, 64, 2, 32)
    for directory in (stored, tmp_path / "1")
  )
  for a, b in zip(before, after, strict=True):
    np.testing.assert_array_equal(a, b)


def test_leaves_and_codebooks_below_the_target_are_trained_again(tmp_path):
  # Leaves along one axis do not separate these vectors.
  other = np.zeros_like(_vectors())
  other[:, 0] = np.linspace(-1, 1, _NUM_BLOCKS)
  narrow = {"num_leaves_searched": 4, "num_reordered": 50}
  config = dataclasses.replace(_FIXED, below_target=True, **narrow)
  _built(tmp_path / "0", other, config)
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["trained_for"] == "this generation"
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.95


@pytest.mark.slow
def test_a_number_of_leaves_below_the_target_is_replaced(tmp_path, monkeypatch):
  # One leaf is searched, which holds too little if there are many leaves.
  many = dataclasses.replace(
    _FIXED, num_leaves=256, num_leaves_searched=1, below_target=True
  )
  _built(tmp_path / "0", _vectors(), many)
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
  config = dataclasses.replace(many, num_leaves=None, below_target=False)
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["trained_for"] == "this generation"
  assert index.report["num_leaves"] < 256
  # Trials are written beside the index, where leftovers of a kill are removed.
  assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


@pytest.mark.parametrize("why", ["damaged", "other settings", "not wanted"])
def test_nothing_unfit_is_reused(tmp_path, stored, why):
  shutil.copytree(stored, tmp_path / "0")
  config = _FIXED
  if why == "damaged":
    (tmp_path / "0" / "ah_codebook.pb").write_bytes(b"\xff\xff")
  elif why == "other settings":
    config = dataclasses.replace(_FIXED, num_leaves=32)
  else:
    config = dataclasses.replace(_FIXED, reuse=False)
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["trained_for"] == "this generation"


def test_the_same_vectors_give_the_same_files(tmp_path, stored):
  _built(tmp_path / "1", _vectors())
  for path in sorted(stored.iterdir()):
    assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


@pytest.mark.parametrize(
  "change", [{}, {"num_leaves": 40, "reordering": "float32"}]
)
def test_scanns_own_builder_meets_the_target(
  tmp_path, stored, monkeypatch, change
):
  # Another version of ScaNN may not read what we write.
  monkeypatch.setattr(trees, "FORMATS_VERSION", "0.0.0")
  monkeypatch.setattr(trees, "write", None)
  config = ScannConfig(brute_force_below=0, **change)
  index = _built(tmp_path / "1", _vectors(), config, stored)
  assert index.report["num_leaves"] == change.get("num_leaves", 64)
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.95


@pytest.mark.parametrize("damage", ["gone", "pickle", "tree", "other"])
def test_what_cannot_be_loaded_is_refused(tmp_path, stored, damage):
  vectors = _vectors()
  shutil.copytree(stored, tmp_path / "scann")
  if damage == "gone":
    (tmp_path / "scann" / "scann_assets.pbtxt").unlink()
  elif damage == "pickle":
    (tmp_path / "scann" / "scann_docids.pkl").write_bytes(b"cos\nsystem\n.")
  elif damage == "tree":
    (tmp_path / "scann" / "tree.json").write_text("{}")
  else:
    vectors = clustered(_NUM_BLOCKS + 1, 1)
  with pytest.raises(IndexLoadError):
    _FIXED.load(tmp_path / "scann", blocks_of(vectors))


def test_a_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)

  def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, "version", version)
  with pytest.raises(LibraryError, match="pip install scann"):
    _FIXED.build(blocks_of(_vectors()))


def test_an_exception_of_check_ends_the_build():
  class Stop(Exception):
    pass

  def check():
    raise Stop

  with pytest.raises(Stop):
    _FIXED.build(blocks_of(_vectors()), BuildOptions(check=check))
