"""Hybrid retrieval: rankings by vectors and by words, fused into one."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int32

from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  QueryBatch,
  SearchResult,
  check_k,
  config_from,
  in_order,
)
from realm_jax.settings import Fraction, NonNegativeFloat, PositiveInt

# Added to ranks before they are inverted (Cormack et al. 2009).
_RANK_SHIFT = 60
# Replaces a sum of 0, which has no logarithm.
_NO_RANK = 1e-6


@dataclasses.dataclass(frozen=True)
class HybridConfig(IndexConfig):
  """An index over vectors and BM25, whose results are fused.

  Both are searched for `num_fused` blocks, at least k. With `fuse="ranks"`, the
  score of a block is the logarithm of

      (1 − bm25_share) / (60 + rank by vectors) + bm25_share / (60 + by words)

  where an index that has not found the block adds nothing (reciprocal rank
  fusion). With `fuse="scores"`, it is the inner product plus `bm25_weight`
  times BM25's score; an index that has not found the block contributes the
  lowest score among its results.

  Choose the share or the weight on held-out questions: `realm_jax.evaluate`
  builds any index over the blocks of a snapshot
  (`--gin.INDEX=@hybrid.HybridConfig()`, `--gin.HybridConfig.bm25_share=0.3`).

  Attributes:
    dense: Kind of the index over the vectors, with its default settings.
    fuse: Quantity that is fused, "ranks" or "scores".
    bm25_share: Share of BM25 among ranks.
    bm25_weight: Weight of BM25's scores.
    num_fused: Number of blocks that each index contributes.
    k1, b: As in `Bm25Config`.
  """

  kind: ClassVar[str] = "hybrid"
  dense: Literal["exact", "faiss", "scann"] = "exact"
  fuse: Literal["ranks", "scores"] = "ranks"
  bm25_share: Fraction = 0.5
  bm25_weight: NonNegativeFloat = 1.0
  num_fused: PositiveInt = 100
  k1: NonNegativeFloat = Bm25Config.k1
  b: Fraction = Bm25Config.b

  @property
  def needs_separate_process(self) -> bool:
    """Whether loading stops all threads of its process."""
    return config_from(self.dense, {}).needs_separate_process

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "HybridIndex":
    """Builds both indexes, each in its own folder."""
    if directory is not None:
      directory.mkdir(parents=True)
    return HybridIndex(
      self,
      *(
        part.build(blocks, directory and directory / part.kind)
        for part in self._parts()
      ),
    )

  def load(self, directory: Path, blocks: Blocks) -> "HybridIndex":
    """Loads both indexes."""
    parts = self._parts()
    return HybridIndex(
      self, *(part.load(directory / part.kind, blocks) for part in parts)
    )

  def _parts(self) -> tuple[IndexConfig, IndexConfig]:
    return config_from(self.dense, {}), Bm25Config(self.k1, self.b)


class HybridIndex(Index):
  """Two indexes of the same blocks; `HybridConfig` builds and loads it."""

  kind = "hybrid"
  needs_vectors = True
  has_own_scores = True

  def __init__(self, config: HybridConfig, dense: Index, words: Index):
    self.num_blocks = dense.num_blocks
    self.report = dense.report
    self._config, self._dense, self._words = config, dense, words

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks of both indexes."""
    check_k(k, self.num_blocks)
    depth = min(max(k, self._config.num_fused), self.num_blocks)
    dense = self._dense.search(queries, depth)
    words = self._words.search(queries, depth)
    fused = [
      self._fused(*of_query, k)
      for of_query in zip(
        dense.rows, dense.scores, words.rows, words.scores, strict=True
      )
    ]
    rows, scores = (np.stack(part) for part in zip(*fused, strict=True))
    return SearchResult(rows, scores)

  def _fused(
    self,
    dense_rows: Int32[np.ndarray, " n"],
    dense: Float[np.ndarray, " n"],
    word_rows: Int32[np.ndarray, " n"],
    words: Float[np.ndarray, " n"],
    k: int,
  ) -> tuple[Int32[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Returns the k best rows of one query, and their scores."""
    config = self._config
    rows, place = np.unique(
      np.concatenate([dense_rows, word_rows]), return_inverse=True
    )
    if config.fuse == "ranks":
      inverse = 1 / (_RANK_SHIFT + 1 + np.arange(len(dense_rows)))
      # A block without a word of the query was not found.
      by_word = np.where(words > 0, config.bm25_share * inverse, 0)
      added = np.append((1 - config.bm25_share) * inverse, by_word)
      scores = np.log(np.maximum(np.bincount(place, added), _NO_RANK))
    else:
      weighted = config.bm25_weight * words.astype(np.float64)
      lowest = dense.min() + weighted.min()
      added = np.append(dense - dense.min(), weighted - weighted.min())
      scores = lowest + np.bincount(place, added)
    best = in_order(rows[None], scores[None].astype(np.float32))
    return best.rows[0, :k], best.scores[0, :k]
