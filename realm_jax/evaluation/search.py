"""Searches of a run by its retriever and its cross-encoder.

Searches obey the edits, the hidden blocks and the filter of a run. Scores are
computed as in training.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32, Int32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes.protocol import QueryBatch, SearchResult, in_order
from realm_jax.inputs.batch import Batch
from realm_jax.models.cross_encoder import RERANKER, score_pairs
from realm_jax.training.stages.stage import Stage

if TYPE_CHECKING:
  from realm_jax.evaluation.run import TrainedRun

# Bytes of stored vectors that are in memory at once to score blocks.
_SCORED_BYTES = 1 << 26
# Number of allowed blocks up to which a filtered search scores all of them, and
# number of scores that it has in memory.
_SCORED_ROWS = 1 << 16
_FILTERED_CELLS = 1 << 22


def search_blocks(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  k: int,
  *,
  current: bool = True,
  hop: bool = False,
) -> SearchResult:
  """Returns the k best blocks of each query by the retriever.

  A filtered run returns the k best of the allowed blocks. If these are few,
  all are scored by their vectors. Otherwise the index is searched for more
  and more blocks until k of them are allowed, so exact search stays exact.

  The scores are f(x, z), computed from the snapshot's stored vectors, as in
  training. Scores of an index with `has_own_scores`, such as BM25, are kept,
  times the scale that the run has learned for them, if any.
  """
  if not run.retrieves:
    none = np.full((len(token_ids), 1), NULL_ROW, np.int32)
    return SearchResult(none, np.zeros(none.shape, np.float32))
  index = run.snapshot.index
  allowed = run.searchable
  count = int(allowed.sum())
  settings = {"k": min(k, count), "current": current, "hop": hop}
  if run.allowed is None:
    return _search_until_allowed(run, token_ids, allowed, **settings)
  is_scored = not index.has_own_scores and count <= _SCORED_ROWS
  search = _score_allowed if is_scored else _search_until_allowed
  # A filter may need a search for all blocks, so it searches for some queries
  # at a time.
  size = max(1, _FILTERED_CELLS // (count if is_scored else index.num_blocks))
  parts = [
    search(run, token_ids[start : start + size], allowed, **settings)
    for start in range(0, max(1, len(token_ids)), size)
  ]
  return SearchResult(
    np.concatenate([part.rows for part in parts]),
    np.concatenate([part.scores for part in parts]),
  )


def _search_until_allowed(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  allowed: Bool[np.ndarray, " N"],
  *,
  k: int,
  current: bool,
  hop: bool,
) -> SearchResult:
  """Searches the index for the k best allowed blocks, edited or not."""
  index, scale = run.snapshot.index, run.components.retriever.score_scale
  changed = {*run.edits, *run.hidden}
  # Exact search compiles a program for each k, so k is rounded to few values.
  number = k + (1 << (len(changed) - 1).bit_length() if changed else 0)
  while True:
    number = min(number, index.num_blocks)
    result, vectors = _search_index(
      run, token_ids, number, current=current, hop=hop
    )
    if run.allowed is None or number == index.num_blocks:
      break
    if allowed[result.rows].sum(axis=1).min(initial=number) >= k:
      break
    number = 1 << (4 * number - 1).bit_length()
  rows, scores = result.rows, result.scores
  if run.config.index_scores:
    scores = float(run.params["retriever"]["scale"]) * scores
  elif vectors is not None and not index.has_own_scores:
    scores = np.empty(rows.shape, np.float32)
    bytes_of_query = rows.shape[1] * vectors[:1].nbytes
    size = max(1, _SCORED_BYTES // max(1, bytes_of_query))
    for start in range(0, len(rows), size):
      part = slice(start, start + size)
      stored = run.snapshot.vectors(rows[part])
      scores[part] = scale * np.einsum("bd,bkd->bk", vectors[part], stored)
  is_left_out = ~allowed[rows] | np.isin(rows, [*run.edits])
  scores = np.where(is_left_out, -np.inf, scores)
  if edits := [row for row in run.edits if allowed[row]]:
    edited = np.stack([run.edited_vectors[row] for row in edits])
    repeated = np.tile(np.array(edits, rows.dtype), (len(rows), 1))
    rows = np.concatenate([rows, repeated], axis=1)
    scores = np.concatenate([scores, scale * (vectors @ edited.T)], axis=1)
  return _first(in_order(rows, scores.astype(np.float32)), k)


def _score_allowed(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  allowed: Bool[np.ndarray, " N"],
  *,
  k: int,
  current: bool,
  hop: bool,
) -> SearchResult:
  """Scores all allowed blocks by their vectors, without the index."""
  vectors = run.embed_tokens(token_ids, current=current, hop=hop)
  rows = np.flatnonzero(allowed)
  scores = np.empty((len(vectors), len(rows)), np.float32)
  size = max(1, _SCORED_BYTES // max(1, vectors[:1].nbytes))
  for start in range(0, len(rows), size):
    part = rows[start : start + size]
    stored = run.snapshot.vectors(part)
    for place, row in enumerate(part.tolist()):
      if row in run.edits:
        stored[place] = run.edited_vectors[row]
    scores[:, start : start + size] = vectors @ stored.T
  scale = np.float32(run.components.retriever.score_scale)
  return _first(in_order(np.tile(rows, (len(vectors), 1)), scale * scores), k)


def _first(result: SearchResult, k: int) -> SearchResult:
  return SearchResult(result.rows[:, :k], result.scores[:, :k])


def search_as_trained(
  run: TrainedRun, stage: Stage, batch: Batch
) -> SearchResult:
  """Searches as in training: with the order and the scores of the index.

  A stage may search several times, with queries that depend on earlier
  results.
  """
  retrieval = stage.retrieval
  assert retrieval is not None
  number = retrieval.num_searched(run.snapshot.num_blocks)
  search = functools.partial(
    _search_index, run, k=number, current=retrieval.current_queries
  )
  result, _ = search(batch.array("query"))
  for _ in range(stage.num_searches - 1):
    queries = stage.next_queries(batch, result, run.stage_context(retrieval))
    following, _ = search(queries, hop=stage.hops)
    result = stage.joined_results(result, following)
  return result


def _search_index(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  k: int,
  *,
  current: bool,
  hop: bool = False,
) -> tuple[SearchResult, Float32[np.ndarray, "n d"] | None]:
  """Returns the index's results, with its own scores, and the query vectors.

  For an index that needs no vectors, there are no query vectors.
  """
  index, vectors = run.snapshot.index, None
  if index.needs_vectors:
    vectors = run.embed_tokens(token_ids, current=current, hop=hop)

  def search(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    result = index.search(QueryBatch(*batch), k)
    return result.rows, result.scores

  return SearchResult(*run.in_batches(search, (token_ids, vectors))), vectors


def reranked(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "n q"],
  result: SearchResult,
  number: int,
  k: int,
) -> SearchResult:
  """Returns the k best blocks in the order of the run's cross-encoder.

  The cross-encoder scores the best `number` retrieved blocks. The others follow
  in their order, with scores that fall by 1 from the lowest of its scores.
  """
  rows = result.rows[:, :number]
  queries = np.repeat(token_ids, rows.shape[1], axis=0)
  blocks = run.gather(rows.reshape(-1))
  scores = run.compute_pairs(RERANKER, score_pairs, queries, blocks)
  scores = scores.reshape(rows.shape)
  rest = np.arange(result.rows.shape[1] - rows.shape[1], dtype=np.float32)
  following = scores.min(axis=1, keepdims=True) - 1 - rest
  scores = np.concatenate([scores, following], axis=1)
  order = np.lexsort((result.rows, -scores), axis=-1)[:, :k]
  return SearchResult(
    *(
      np.take_along_axis(array, order, axis=1)
      for array in (result.rows, scores, result.scores)
    )
  )
