"""Reranking of retrieved blocks by a cross-encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models.cross_encoder import RERANKER, score_pairs

if TYPE_CHECKING:
  from realm_jax.evaluation.run import TrainedRun


def reranked(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  found: SearchResult,
  number: int,
  k: int,
) -> SearchResult:
  """Returns the k best blocks in the order of the run's cross-encoder.

  The cross-encoder scores the best `number` retrieved blocks. The others follow
  in their order, with scores that fall by 1 from the lowest of its scores.
  """
  rows = found.rows[:, :number]
  places = np.argwhere(rows != NULL_ROW)
  queries, blocks = token_ids[places[:, 0]], run.gather(rows[*places.T])
  scores = np.full(rows.shape, -np.inf, np.float32)
  scores[*places.T] = run.compute_pairs(RERANKER, score_pairs, queries, blocks)
  rest = found.rows.shape[1] - rows.shape[1]
  is_scored = np.isfinite(scores)
  least = scores.min(axis=1, keepdims=True, initial=np.inf, where=is_scored)
  following = least - 1 - np.arange(rest, dtype=np.float32)
  scores = np.concatenate([scores, following], axis=1)
  order = np.lexsort((found.rows, -scores), axis=-1)[:, :k]
  return SearchResult(
    *(
      np.take_along_axis(array, order, axis=1)
      for array in (found.rows, scores, found.scores)
    )
  )
