"""BM25 over wordpieces, searched by the postings of a query's words."""

import dataclasses
import math
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Int, Int32
from scipy import sparse

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  IndexLoadError,
  QueryBatch,
  SearchResult,
  check_k,
)
from realm_jax.settings import Fraction, NonNegativeFloat
from realm_jax.storage.local_disk import (
  ScratchDirectory,
  create_mapped_array,
  drop_pages,
  save_array,
)

Rows = Int32[np.ndarray, " n"]
Scores = Float32[np.ndarray, " n"]
Sums = Float32[np.ndarray, " N"]
# Numbers of blocks that a build counts at once, and of postings that it sorts.
_ROWS_PER_PART = 1 << 17
_POSTINGS_PER_WRITE = 1 << 24
# Bound on the relative difference of float32 sums in different orders.
_ROUNDING = 1e-4
_SMALLEST = float(np.finfo(np.float32).tiny)
# Number of postings that can be read in the time of one binary search.
_POSTINGS_PER_LOOKUP = 16


@dataclasses.dataclass(frozen=True)
class Bm25Config(IndexConfig):
  """Lucene's BM25, with scores computed when the index is built.

  Attributes:
    k1: Saturation of term frequency: the number of repetitions from which on
      further ones count little.
    b: Strength of the normalization by a block's length, from 0 to 1.
  """

  kind: ClassVar[str] = "bm25"
  needs_vectors: ClassVar[bool] = False
  k1: NonNegativeFloat = 0.9
  b: Fraction = 0.4

  def build(self, blocks: Blocks, directory: Path | None = None) -> "Bm25Index":
    """Counts the words of every block, and writes the postings of each word.

    A build needs 2 GB and about 30 bytes a block of memory, and disk space for
    twice the index's size. Without a directory, the files are in TMPDIR, and
    unlinked once they are loaded.
    """
    if directory is None:
      with ScratchDirectory() as scratch:
        return self.build(blocks, scratch.path / self.kind)
    parts = directory / "parts"
    parts.mkdir(parents=True)
    lengths, starts_of_parts = _write_parts(blocks, parts)
    frequencies = np.diff(starts_of_parts).sum(axis=0)
    starts = np.append(0, np.cumsum(frequencies))
    idf = [
      math.log(1 + (blocks.num_blocks - count + 0.5) / (count + 0.5))
      for count in frequencies.tolist()
    ]
    average = lengths.mean() or 1.0
    norms = self.k1 * ((1 - self.b) + self.b * lengths / average)
    bounds = np.zeros(blocks.vocab_size, np.float32)
    paths = directory / "rows.npy", directory / "scores.npy"
    for path, dtype in zip(paths, (np.int32, np.float32), strict=True):
      create_mapped_array(path, dtype, (int(starts[-1]),))
    first = 0
    while starts[first] < starts[-1]:
      blocks.check()
      most = starts[first] + _POSTINGS_PER_WRITE
      limit = int(np.searchsorted(starts, most, side="right")) - 1
      limit = max(limit, first + 1)
      rows, words, repeats = _read_parts(parts, starts_of_parts, first, limit)
      saturated = repeats / (norms[rows] + repeats)
      scores = (np.array(idf, np.float32)[words] * saturated).astype(np.float32)
      np.maximum.at(bounds, words, scores)
      for path, array in zip(paths, (rows, scores), strict=True):
        # Mapped again each time, because mapped pages count as memory.
        mapped = np.lib.format.open_memmap(path, mode="r+")
        mapped[starts[first] : starts[limit]] = array
      first = limit
    save_array(directory / "starts.npy", starts)
    save_array(directory / "bounds.npy", bounds)
    shutil.rmtree(parts)
    return self.load(directory, blocks)

  def load(self, directory: Path, blocks: Blocks) -> "Bm25Index":
    """Loads the files of `build`, memory-mapped."""
    try:
      names = "starts", "bounds", "rows", "scores"
      arrays = [_map(directory / f"{name}.npy") for name in names]
    except (ValueError, EOFError, OSError) as error:
      raise IndexLoadError(
        f"{directory} is damaged, or of a release with another format: "
        f"{error}; build it again"
      ) from error
    return Bm25Index(blocks.num_blocks, *arrays)


def _map(path: Path) -> np.ndarray:
  return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)


def _write_parts(
  blocks: Blocks, folder: Path
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, "p s"]]:
  """Counts the words of blocks, part by part.

  A part's files list, by word, the blocks that have it, and how often.

  Returns:
    The length of each block, and where each word's postings start in a part.
  """
  if blocks.token_ids is None:
    raise RealmError("BM25 needs the blocks' wordpieces")
  lengths = np.zeros(blocks.num_blocks, np.int64)
  starts = []
  for start in range(0, blocks.num_blocks, _ROWS_PER_PART):
    blocks.check()
    rows = range(start, min(start + _ROWS_PER_PART, blocks.num_blocks))
    words = [blocks.token_ids(row) for row in rows]
    sizes = lengths[start : rows.stop]
    sizes[:] = [len(of_block) for of_block in words]
    flat = np.concatenate(words)
    counts = sparse.csr_array(
      (np.ones(len(flat), np.int32), flat, np.append(0, np.cumsum(sizes))),
      shape=(len(rows), blocks.vocab_size),
    ).tocsc()
    counts.sum_duplicates()
    save_array(
      folder / f"{len(starts)}.npy",
      np.stack([counts.indices + start, counts.data], dtype=np.int32),
    )
    starts.append(counts.indptr)
  return lengths, np.stack(starts)


def _read_parts(
  folder: Path, starts: Int[np.ndarray, "p s"], first: int, limit: int
) -> tuple[Rows, Rows, Rows]:
  """Returns rows, words and counts of a range of words, by word, then row."""
  columns = []
  for number, of_part in enumerate(starts):
    mapped = _map(folder / f"{number}.npy")
    part = mapped[:, of_part[first] : of_part[limit]]
    counts = np.diff(of_part[first : limit + 1])
    words = np.repeat(np.arange(limit - first, dtype=np.int32), counts)
    columns.append(np.vstack([part, words]))
    drop_pages(mapped)
  rows, repeats, words = np.concatenate(columns, axis=1)
  # A counting sort, which keeps the rows of a word in order.
  shape = (int(rows.max()) + 1, limit - first)
  by_word = sparse.coo_array((repeats, (rows, words)), shape=shape).tocsc()
  counts = np.diff(by_word.indptr)
  words = np.repeat(np.arange(first, limit, dtype=np.int32), counts)
  return by_word.indices, words, by_word.data


class Bm25Index(Index):
  """Scores blocks by the words that they share with the query.

  Special wordpieces occur in no block, so they score nothing in a query. A
  word's postings are the rows that contain it, in order, with their scores.
  """

  kind = "bm25"
  needs_vectors = False
  has_own_scores = True

  def __init__(self, num_blocks: int, *arrays: np.ndarray):
    self.num_blocks = num_blocks
    # The bounds are the highest score of each word.
    self._starts, self._bounds, self._rows, self._scores = arrays

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks; a block that shares no word scores 0.

    The scores are exact: a block is skipped only if an upper bound of its score
    shows that k others are better (MaxScore, Turtle and Flood 1995).
    """
    check_k(k, self.num_blocks)
    shape = (len(queries.token_ids), k)
    rows = np.empty(shape, np.int32)
    scores = np.zeros(shape, np.float32)
    sums = np.zeros(self.num_blocks, np.float32)
    for i, words in enumerate(queries.token_ids):
      # `sums` is 0 for every block here.
      words = words[self._bounds[words] > 0]
      candidates = self._candidates(words, k, sums)
      # In the order of the query, because float32 sums depend on it.
      columns = {
        word: self._scores_of(word, candidates, sums)
        for word in {*words.tolist()}
      }
      total = np.zeros(len(candidates), np.float32)
      for word in words.tolist():
        total += columns[word]
      # Ties go to the lower row, also for the k-th block.
      order = np.argsort(-total, kind="stable")[:k]
      count = len(order)
      rows[i, :count], scores[i, :count] = candidates[order], total[order]
      if count < k:
        rows[i, count:] = np.setdiff1d(np.arange(k), candidates)[: k - count]
    return SearchResult(rows=rows, scores=scores)

  def _candidates(
    self, words: Int32[np.ndarray, " w"], k: int, sums: Sums
  ) -> Rows:
    """Returns the rows, in order, that may be among the k best of a query."""
    distinct, counts = np.unique(words, return_counts=True)
    bounds = counts * self._bounds[distinct].astype(np.float64)
    order = np.argsort(-bounds)
    terms = np.column_stack([distinct, counts])[order].tolist()
    # Upper bound of the sum over the terms from each position on.
    rest = [*np.cumsum(bounds[order][::-1])[::-1].tolist(), 0.0]
    at_least, place = 0.0, 0
    # From some position on, a block without any earlier term cannot qualify.
    while place < len(terms) and rest[place] >= at_least:
      word, count = terms[place]
      rows, scores = self._postings(word)
      partial = sums[rows] + count * scores
      sums[rows] = partial
      at_least = max(at_least, _kth_best(partial, k))
      place += 1
    is_kept = sums >= max(at_least - rest[place], _SMALLEST)
    rows_left = np.flatnonzero(is_kept).astype(np.int32)
    partial = sums[rows_left]
    sums.fill(0)
    for i in range(place, len(terms)):
      word, count = terms[i]
      partial += count * self._scores_of(word, rows_left, sums)
      at_least = max(at_least, _kth_best(partial, k))
      is_kept = partial >= at_least - rest[i + 1]
      rows_left, partial = rows_left[is_kept], partial[is_kept]
    return rows_left

  def _scores_of(self, word: int, rows: Rows, zeros: Sums) -> Scores:
    """Returns a word's scores for some rows, 0 for rows without the word."""
    postings, scores = self._postings(word)
    if len(postings) < _POSTINGS_PER_LOOKUP * len(rows):
      zeros[postings] = scores
      found_scores = zeros[rows]
      zeros[postings] = 0
      return found_scores
    places = np.searchsorted(postings, rows)
    places[places == len(postings)] = 0
    return np.where(postings[places] == rows, scores[places], np.float32(0))

  def _postings(self, word: int) -> tuple[Rows, Scores]:
    place = slice(self._starts[word], self._starts[word + 1])
    return self._rows[place], self._scores[place]


def _kth_best(scores: Scores, k: int) -> float:
  """Returns a score that k blocks reach, less a margin for rounding."""
  if len(scores) < k:
    return 0.0
  return (1 - _ROUNDING) * float(np.partition(scores, -k)[-k])
