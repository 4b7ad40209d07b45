"""ScaNN over our own trees: near exact search, tuned, reused, safe to load."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexLoadError,
  RecallError,
)
from realm_jax.indexes.scann import files, library
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.indexes.scann.settings import Structure
from realm_jax.indexes.scann.tree_builder import default_leaves
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


@pytest.mark.parametrize(
  "change",
  [
    {},
    {"reordering": "bfloat16"},
    {"dims_per_code": 4},
  ],
)
def test_every_structure_finds_nearly_all_that_exact_search_finds(change):
  vectors = _vectors()
  index = dataclasses.replace(_FIXED, **change).build(
    blocks_of(vectors), BuildOptions(queries=_QUERIES)
  )
  assert index.report["structure"] == dataclasses.asdict(
    Structure(**{"num_leaves": 64, "reordering": "float32", **change})
  )
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


def test_codes_are_those_of_the_vectors():
  # With as many reordered as there are blocks of the leaf, codes decide
  # nothing; with k of them, they decide all.
  vectors = _vectors()
  config = dataclasses.replace(
    _FIXED, num_leaves_searched=64, num_reordered=8, below_target=True
  )
  index = config.build(blocks_of(vectors), BuildOptions(queries=_QUERIES))
  assert 0.5 < _recall(index.search(_QUERIES, 8), vectors) < 0.95
  again = index.search_at(_QUERIES, 8, 64, _NUM_BLOCKS)
  assert _recall(again, vectors) == 1


@pytest.mark.slow
def test_open_settings_are_chosen_by_measuring():
  vectors = _vectors()
  config = ScannConfig(brute_force_below=0, recall_target=0.97)
  report = config.build(
    blocks_of(vectors), BuildOptions(queries=_QUERIES)
  ).report
  assert report["recall"] >= 0.97
  assert report["structure_of"] == "trials"
  tried = [trial["structure"] for trial in report["trials"]]
  assert report["structure"] in tried
  assert {s["num_leaves"] for s in tried} > {default_leaves(_NUM_BLOCKS)}
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


def test_leaves_and_codebooks_are_reused_while_they_meet_the_target(
  tmp_path, stored
):
  moved = (1.01 * _vectors()).astype(np.float32)
  index = _built(tmp_path / "1", moved, previous=stored)
  assert index.report["trained_for"] == "the generation before"
  assert _recall(index.search(_QUERIES, 8), moved) > 0.95
  before, after = (
    files.read_trained(directory, Structure(64), 32)
    for directory in (stored, tmp_path / "1")
  )
  for a, b in zip(before, after, strict=True):
    np.testing.assert_array_equal(a, b)


def test_leaves_and_codebooks_below_the_target_are_trained_again(tmp_path):
  # Leaves along one axis do not separate these vectors.
  other = np.zeros_like(_vectors())
  other[:, 0] = np.linspace(-1, 1, _NUM_BLOCKS)
  config = dataclasses.replace(_FIXED, below_target=True)
  _built(tmp_path / "0", other, config)
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["trained_for"] == "this generation"
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.95


@pytest.mark.slow
def test_a_structure_below_the_target_is_replaced(tmp_path, monkeypatch):
  # One leaf is searched, which holds too little if there are many leaves.
  many = dataclasses.replace(
    _FIXED, num_leaves=256, num_leaves_searched=1, below_target=True
  )
  _built(tmp_path / "0", _vectors(), many)
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
  config = dataclasses.replace(many, num_leaves=None, below_target=False)
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["structure_of"] == "trials"
  assert index.report["trained_for"] == "this generation"
  assert index.report["structure"]["num_leaves"] < 256
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.9
  # Trials are written beside the index, where leftovers of a kill are removed.
  assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
  loaded = config.load(tmp_path / "1", blocks_of(_vectors()))
  np.testing.assert_array_equal(
    loaded.search(_QUERIES, 8).rows, index.search(_QUERIES, 8).rows
  )
  # Without a target to meet, or with all settings fixed, nothing is tried.
  index = _built(tmp_path / "2", _vectors(), many, tmp_path / "0")
  assert index.report["structure_of"] == "the generation before"


@pytest.mark.parametrize(
  "why", ["damaged", "of another shape", "other settings", "not wanted"]
)
def test_nothing_unfit_is_reused(tmp_path, stored, why):
  shutil.copytree(stored, tmp_path / "0")
  config = _FIXED
  if why == "of another shape":
    tree = tmp_path / "0" / "tree.json"
    values = json.loads(tree.read_text())
    values["structure"]["num_leaves"] = 63
    tree.write_text(json.dumps(values))
    config = dataclasses.replace(_FIXED, num_leaves=63)
  elif why == "damaged":
    (tmp_path / "0" / "ah_codebook.pb").write_bytes(b"\xff\xff")
  elif why == "other settings":
    config = dataclasses.replace(_FIXED, num_leaves=32)
  else:
    config = fixed_tree(
      64, num_leaves_searched=4, num_reordered=50, reordering="float32"
    )
  index = _built(tmp_path / "1", _vectors(), config, tmp_path / "0")
  assert index.report["trained_for"] == "this generation"


def test_the_same_vectors_give_the_same_files(tmp_path, stored):
  _built(tmp_path / "1", _vectors())
  for path in sorted(stored.iterdir()):
    assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


@pytest.mark.parametrize(
  "damage", ["gone", "pickle", "tree", "reordering", "other"]
)
def test_what_cannot_be_loaded_is_refused(tmp_path, stored, damage):
  vectors = _vectors()
  shutil.copytree(stored, tmp_path / "scann")
  if damage == "gone":
    (tmp_path / "scann" / "scann_assets.pbtxt").unlink()
  elif damage == "pickle":
    (tmp_path / "scann" / "scann_docids.pkl").write_bytes(b"cos\nsystem\n.")
  elif damage == "tree":
    (tmp_path / "scann" / "tree.json").write_text("{}")
  elif damage == "reordering":
    tree = tmp_path / "scann" / "tree.json"
    tree.write_text(tree.read_text().replace('"float32"', '"float16"'))
  else:
    vectors = clustered(_NUM_BLOCKS + 1, 1)
  with pytest.raises(IndexLoadError):
    _FIXED.load(tmp_path / "scann", blocks_of(vectors))


def test_a_tree_with_settings_that_are_gone_is_searched(tmp_path, stored):
  shutil.copytree(stored, tmp_path / "scann")
  tree = tmp_path / "scann" / "tree.json"
  values = json.loads(tree.read_text())
  values["structure"] |= {"soar_lambda": 0.0, "reordering": "int8"}
  tree.write_text(json.dumps(values))
  index = _FIXED.load(tmp_path / "scann", blocks_of(_vectors()))
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.95


def test_another_version_of_scann_builds_by_itself(monkeypatch):
  monkeypatch.setattr(library, "installed_version", lambda: "9.8.7")
  monkeypatch.setattr(files, "write", None)
  config = dataclasses.replace(_FIXED, below_target=True)
  index = config.build(blocks_of(_vectors()), BuildOptions(queries=_QUERIES))
  assert _recall(index.search(_QUERIES, 8), _vectors()) > 0.5


def test_an_exception_of_check_ends_the_build():
  class Stop(Exception):
    pass

  def check():
    raise Stop

  with pytest.raises(Stop):
    _FIXED.build(blocks_of(_vectors()), BuildOptions(check=check))
