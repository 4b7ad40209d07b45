"""What every index must do, whatever searches behind it; BM25's formula."""

import errno
import math

import numpy as np
import pytest

from realm_jax.indexes import bm25
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import (
  CONFIGS,
  Blocks,
  Index,
  IndexLoadError,
  QueryBatch,
  SearchError,
  config_from,
)
from tests.full_disk import full_disk

_VOCAB_SIZE = 300
_DIM = 16


def _blocks(num_blocks, seed=0):
  rng = np.random.default_rng(seed)
  tokens = [rng.integers(5, _VOCAB_SIZE, 30) for _ in range(num_blocks)]
  vectors = rng.standard_normal((num_blocks, _DIM)).astype(np.float32)
  return Blocks(
    num_blocks=num_blocks,
    vectors=vectors,
    token_ids=lambda row: tokens[row],
    vocab_size=_VOCAB_SIZE,
  )


def _queries(count, seed=1):
  rng = np.random.default_rng(seed)
  tokens = np.zeros((count, 12), np.int32)
  tokens[:, 0], tokens[:, 9] = 2, 3
  tokens[:, 1:9] = rng.integers(5, _VOCAB_SIZE, (count, 8))
  vectors = rng.standard_normal((count, _DIM)).astype(np.float32)
  return QueryBatch(token_ids=tokens, vectors=vectors)


# Measured times could choose another tree for the same blocks.
_TREE = {
  "brute_force_below": 0,
  "below_target": True,
  "num_leaves": 16,
  "num_leaves_searched": 12,
  "num_reordered": 100,
}
# ScaNN both as brute force and as a tree, FAISS with lists and without.
_INDEXES = {
  **{kind: (kind, {}) for kind in CONFIGS},
  "scann tree": ("scann", _TREE),
  "scann narrow tree": (
    "scann",
    {**_TREE, "num_leaves_searched": 1, "num_reordered": 1},
  ),
  "faiss narrow lists": (
    "faiss",
    {"brute_force_below": 0, "nprobe": 1, "num_reordered": 1},
  ),
  # Its builds differ, and searches that keep all blocks find the same.
  "symphonyqg graph": (
    "symphonyqg",
    {"brute_force_below": 0, "ef_search": 500},
  ),
  "exact in bfloat16": ("exact", {"dtype": "bfloat16"}),
}


@pytest.fixture(scope="module", params=_INDEXES)
def config(request):
  kind, parameters = _INDEXES[request.param]
  if kind == "faiss":
    library = pytest.importorskip("faiss", reason="it is an extra")
    # Its threads wait busily for each other.
    library.omp_set_num_threads(1)
  if kind == "symphonyqg":
    pytest.importorskip("rabitqlib", reason="it is an extra")
  return config_from(kind, parameters)


@pytest.fixture(scope="module")
def index(config) -> Index:
  return config.build(_blocks(500))


@pytest.mark.parametrize(("k", "count"), [(1, 9), (400, 1), (500, 9)])
def test_it_finds_k_different_blocks_best_first(index, k, count):
  found = index.search(_queries(count), k)
  assert found.rows.shape == found.scores.shape == (count, k)
  assert found.rows.dtype == np.int32 and found.scores.dtype == np.float32
  assert (found.rows >= 0).all() and (found.rows < 500).all()
  assert all(len(set(rows)) == k for rows in found.rows.tolist())
  assert np.isfinite(found.scores).all()
  falls = np.diff(found.scores, axis=1)
  assert (falls <= 0).all()
  # Of equals, the lower row comes first.
  assert (np.diff(found.rows, axis=1)[falls == 0] > 0).all()


def test_a_query_is_answered_alike_in_any_batch(index):
  queries = _queries(9)
  together = index.search(queries, 5)
  one = QueryBatch(queries.token_ids[4:5, :10], queries.vectors[4:5])
  alone = index.search(one, 5)
  np.testing.assert_array_equal(together.rows[4:5], alone.rows)
  np.testing.assert_allclose(together.scores[4:5], alone.scores, rtol=1e-5)


def test_built_again_or_loaded_it_searches_alike(config, index, tmp_path):
  directory = tmp_path / config.kind
  again = config.build(_blocks(500), directory)
  loaded = config_from(config.kind, vars(config)).load(
    tmp_path / again.kind, _blocks(500)
  )
  found = index.search(_queries(9), 20)
  for other in (again, loaded):
    same = other.search(_queries(9), 20)
    np.testing.assert_array_equal(same.rows, found.rows)
    np.testing.assert_array_equal(same.scores, found.scores)


@pytest.mark.parametrize("num_blocks", [1, 17])
def test_a_tiny_corpus_is_searched_in_full(config, num_blocks):
  index = config_from(config.kind, {}).build(_blocks(num_blocks))
  found = index.search(_queries(3), num_blocks)
  expected = np.tile(np.arange(num_blocks), (3, 1))
  np.testing.assert_array_equal(np.sort(found.rows, axis=1), expected)


def test_what_cannot_be_searched_is_refused(index):
  for k in (0, 501):
    with pytest.raises(SearchError, match=f"k={k}"):
      index.search(_queries(2), k)
  tokens = _queries(2).token_ids
  if not index.needs_vectors:
    assert index.search(QueryBatch(tokens), 3).rows.shape == (2, 3)
    return
  with pytest.raises(SearchError, match="embed them first"):
    index.search(QueryBatch(tokens), 3)
  with pytest.raises(SearchError, match="dimension 16"):
    index.search(QueryBatch(tokens, np.zeros((2, 5), np.float32)), 3)


def test_a_setting_out_of_its_choices_is_refused():
  with pytest.raises(IndexLoadError, match="'float32' or 'bfloat16'"):
    config_from("exact", {"dtype": "int8"})


def test_a_full_disk_is_an_error_of_the_system(config, tmp_path):
  directory = tmp_path / config.kind
  config.build(_blocks(500), directory)
  files = [path for path in directory.rglob("*") if path.is_file()]
  sizes = [path.stat().st_size for path in files]
  if not sizes:
    return  # It writes nothing.
  for max_bytes in (max(sizes) - 1, max(sizes) // 50):
    full = tmp_path / f"full-{max_bytes}"
    with full_disk(max_bytes), pytest.raises(OSError) as caught:
      config.build(_blocks(500), full)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)


@pytest.mark.parametrize(
  ("seed", "k1", "b"), [(0, 0.9, 0.4), (1, 0.9, 0.4), (2, 1.5, 0.75)]
)
def test_bm25_ranks_as_if_all_blocks_were_scored(seed, k1, b, monkeypatch):
  """By Lucene's formula (Kamphuis et al. 2020), without its constant factor."""
  # Postings come from several parts, and are written in several goes.
  monkeypatch.setattr(bm25, "_ROWS_PER_PART", 300)
  monkeypatch.setattr(bm25, "_POSTINGS_PER_WRITE", 2000)
  rng = np.random.default_rng(seed)
  # Few distinct blocks, so that many score alike. Words are as in a text, and
  # the last ones are in no block.
  odds = 1 / np.arange(1, 91)
  texts = [
    10 + rng.choice(90, rng.integers(0, 30), p=odds / odds.sum())
    for _ in range(400)
  ]
  tokens = [texts[i] for i in rng.integers(0, 400, 1000)]
  counts = np.stack([np.bincount(words, minlength=120) for words in tokens])
  frequency = (counts > 0).sum(axis=0)
  idf = [math.log(1 + (1000 - df + 0.5) / (df + 0.5)) for df in frequency]
  lengths = counts.sum(axis=1, keepdims=True)
  norms = k1 * ((1 - b) + b * lengths / lengths.mean())
  matrix = np.float32(np.float32(idf) * (counts / (norms + counts)))
  queries = rng.integers(10, 110, (20, 12)).astype(np.int32)
  queries[:, 8:] = queries[:, 2:3]
  # Special wordpieces and padding score nothing.
  queries[0] = [2, *range(101, 110), 3, 0]
  blocks = Blocks(1000, token_ids=lambda row: tokens[row], vocab_size=120)
  index = Bm25Config(k1=k1, b=b).build(blocks)
  for k in (1, 8, 100, 1000):
    found = index.search(QueryBatch(queries), k)
    for query, rows, scores in zip(
      queries, found.rows, found.scores, strict=True
    ):
      total = np.zeros(1000, np.float32)
      for word in query:
        total += matrix[:, word]
      order = np.argsort(-total, kind="stable")[:k]
      np.testing.assert_array_equal(rows, order)
      np.testing.assert_array_equal(scores, total[order])


@pytest.mark.parametrize("name", ["rows.npy", "scores.npy", "starts.npy"])
def test_bm25_without_a_whole_file_says_to_build_it_again(name, tmp_path):
  for size in (None, 40, 200):
    folder = tmp_path / str(size)
    Bm25Config().build(_blocks(50), folder)
    path = folder / name
    if size is None:
      path.unlink()
    else:
      path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(IndexLoadError, match="build it again"):
      Bm25Config().load(folder, _blocks(50))


def test_a_hybrid_adds_ranks_or_scores():
  # By vectors the order is 2, 0, 3, 1; the words are those of rows 1 and 0.
  vectors = np.array([[3], [1], [4], [2]], np.float32)
  tokens = [[5, 6], [5, 5], [7, 7], [8, 8]]
  blocks = Blocks(4, vectors, lambda row: np.array(tokens[row]), 20)
  query = QueryBatch(np.array([[2, 5, 3]], np.int32), np.ones((1, 1), "f4"))
  by_word = _pairs(Bm25Config().build(blocks).search(query, 4))
  assert by_word[1] > by_word[0] > by_word[2] == 0

  def found(**settings):
    config = config_from("hybrid", {"bm25_share": 0.6, **settings})
    return _pairs(config.build(blocks).search(query, 3))

  sums = {0: 0.4 / 62 + 0.6 / 62, 1: 0.4 / 64 + 0.6 / 61, 2: 0.4 / 61}
  assert found() == pytest.approx({row: math.log(n) for row, n in sums.items()})
  # Of three by vectors, row 1 has the lowest inner product that was found.
  sums = {0: 3 + 10 * by_word[0], 1: 2 + 10 * by_word[1], 2: 4}
  scores = found(fuse="scores", bm25_weight=10.0, num_fused=3)
  assert scores == pytest.approx(sums)


def _pairs(found):
  """The score of each row that one query has found."""
  pairs = zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True)
  return dict(pairs)
