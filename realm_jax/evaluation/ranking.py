"""The blocks found for queries, and how likely each of them is: p(z|x)."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jaxtyping import Float, Float32, Int32

from realm_jax.evaluation.trained import Trained
from realm_jax.generations.follow.loading import Generation
from realm_jax.indexes.protocol import (
  QueryBatch,
  SearchError,
  SearchResult,
  in_order,
)
from realm_jax.models.retriever import embed_queries, query_tower_parameters
from realm_jax.partitioning import rules


class Ranking(NamedTuple):
  """Blocks of each query, the best first.

  `scores` are those that the reader's are added to, and `probabilities`
  their softmax over the blocks found.
  """

  rows: Int32[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]
  probabilities: Float[np.ndarray, "b k"]


class BlockRanker:
  """Finds the best blocks of queries with a checkpoint's query tower.

  Args:
    trained: the checkpoint.
    generation: what is searched.
    num_searched: how many blocks to find; in a smaller corpus, all.
    index_scores: whether a block's score is the index's, times the scale
      that was learnt (BM25), and not f(x, z).
    current_queries: whether the checkpoint's own tower embeds the queries,
      or the one that the generation was published with.
    as_found: whether blocks stay in the index's own order, with its scores.
  """

  def __init__(
    self,
    trained: Trained,
    generation: Generation,
    *,
    num_searched: int,
    index_scores: bool = False,
    current_queries: bool = True,
    as_found: bool = False,
  ):
    self._mesh = trained.mesh
    self._generation = generation
    self._index_scores = index_scores
    # Random blocks come with equal scores: nothing prefers any of them.
    self._as_found = (
      as_found or index_scores or generation.index.kind == "random"
    )
    self._score_scale = trained.models.retriever.score_scale
    self.num_searched = _depth(num_searched, generation.index.num_blocks)
    if index_scores:
      self._score_scale = float(trained.params["retriever"]["scale"])
    elif current_queries:
      self._params = query_tower_parameters(
        trained.models.retriever, trained.params["retriever"]
      )
    else:
      self._params = generation.query_params
    self._embed = jax.jit(
      functools.partial(embed_queries, trained.models.retriever),
      out_shardings=rules.batch_sharding(trained.mesh),
    )
    if index_scores and generation.index.needs_vectors:
      raise SearchError(
        f"INDEX_SCORES is for an index without vectors, and generation "
        f"{generation.step} is searched by {generation.index.kind!r}; give "
        "the generation of the index that the run was trained with"
      )

  def embed(
    self, token_ids: Int32[np.ndarray, "b q"]
  ) -> Float32[np.ndarray, "b d"]:
    """The queries' vectors; b is a multiple of the devices."""
    queries = rules.to_devices({"query": token_ids}, self._mesh)["query"]
    return np.asarray(self._embed(self._params, queries))

  def search(self, token_ids: Int32[np.ndarray, "b q"]) -> SearchResult:
    """What the index finds, with its own scores."""
    needs_vectors = self._generation.index.needs_vectors
    return self._search(
      token_ids, self.embed(token_ids) if needs_vectors else None
    )

  def _search(
    self,
    token_ids: Int32[np.ndarray, "b q"],
    vectors: Float32[np.ndarray, "b d"] | None,
  ) -> SearchResult:
    return self._generation.index.search(
      QueryBatch(token_ids, vectors), self.num_searched
    )

  def rank(self, token_ids: Int32[np.ndarray, "b q"]) -> Ranking:
    """The blocks found, in the order of their scores.

    An index that approximates only chooses: f(x, z) is computed from the
    generation's stored vectors, as in training.
    """
    if self._as_found:
      found = self.search(token_ids)
      scale = self._score_scale if self._index_scores else 1.0
      found = in_order(found.rows, scale * found.scores)
    else:
      vectors = self.embed(token_ids)
      found = self._search(token_ids, vectors)
      stored = self._generation.vectors(found.rows)
      scores = np.einsum("bd,bkd->bk", vectors, stored)
      found = in_order(found.rows, self._score_scale * scores)
    return Ranking(found.rows, found.scores, softmax(found.scores))


def softmax(
  scores: Float[np.ndarray, "b k"],
) -> Float[np.ndarray, "b k"]:
  """exp(s) / Σ exp(s) over the last axis, in float64."""
  weights = np.exp(np.float64(scores) - np.max(scores, axis=-1, keepdims=True))
  return weights / weights.sum(axis=-1, keepdims=True)


def _depth(num_searched: int, num_blocks: int) -> int:
  if num_searched < 1:
    raise SearchError(f"num_searched={num_searched}; want at least 1")
  if num_searched > num_blocks:
    logging.info("the corpus has %d blocks: searching all", num_blocks)
  return min(num_searched, num_blocks)
