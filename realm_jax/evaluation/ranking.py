"""The blocks retrieved for queries, and their probabilities p(z|x)."""

from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float, Float32, Int32
from scipy.special import softmax

from realm_jax.evaluation.queries import QueryEmbedder
from realm_jax.evaluation.trained_model import TrainedModel
from realm_jax.generations.loading import Generation
from realm_jax.indexes.protocol import (
  QueryBatch,
  SearchError,
  SearchResult,
  in_order,
)


class Ranking(NamedTuple):
  """Blocks retrieved for each query, best first.

  Attributes:
    rows: Rows of the blocks in the corpus.
    scores: Scores to which the reader's are added.
    probabilities: Softmax of the scores over the retrieved blocks.
  """

  rows: Int32[np.ndarray, "*b k"]
  scores: Float32[np.ndarray, "*b k"]
  probabilities: Float[np.ndarray, "*b k"]

  def of_query(self, i: int) -> "Ranking":
    """Returns the blocks of one query, as arrays [k]."""
    return Ranking(self.rows[i], self.scores[i], self.probabilities[i])


class BlockRanker:
  """Retrieves the best blocks of a generation for queries.

  Args:
    model: Checkpoint to evaluate.
    generation: Generation to search.
    num_searched: Number of blocks to retrieve; a smaller corpus is searched
      whole.
    index_scores: Whether the score of a block is the index's, times the scale
      that training learned (BM25), and not f(x, z).
    current_queries: Whether queries are embedded by the checkpoint's own query
      tower; otherwise by the tower that the generation was published with.
    by_index_order: Whether blocks keep the order and scores of the index.

  Raises:
    SearchError: num_searched is not positive, or `index_scores` is asked of an
      index that searches vectors.
  """

  def __init__(
    self,
    model: TrainedModel,
    generation: Generation,
    *,
    num_searched: int,
    index_scores: bool = False,
    current_queries: bool = True,
    by_index_order: bool = False,
  ):
    if index_scores and generation.index.needs_vectors:
      raise SearchError(
        f"INDEX_SCORES is for an index without vectors, and generation "
        f"{generation.step} is searched by {generation.index.kind!r}; give "
        "the generation of the index that the run was trained with"
      )
    num_blocks = generation.index.num_blocks
    if num_searched > num_blocks:
      logging.info("The corpus has %d blocks: searching all", num_blocks)
    self.num_searched = _number(num_searched, num_blocks)
    self._generation = generation
    self._index_scores = index_scores
    # Random blocks have equal scores, so that none of them is preferred.
    self._by_index_order = (
      by_index_order or index_scores or generation.index.kind == "random"
    )
    self._score_scale = model.models.retriever.score_scale
    if index_scores:
      self._score_scale = float(model.params["retriever"]["scale"])
    else:
      params = None if current_queries else generation.query_params
      self._embed = QueryEmbedder(model, params)

  def search(
    self,
    token_ids: Int32[np.ndarray, "b q"],
    vectors: Float32[np.ndarray, "b d"] | None = None,
    *,
    num_searched: int | None = None,
  ) -> SearchResult:
    """Searches the index, and returns the index's own scores.

    Queries whose index needs `vectors` are embedded where none are given.
    """
    index = self._generation.index
    if vectors is None and index.needs_vectors:
      vectors = self._embed(token_ids)
    number = self.num_searched
    if num_searched is not None:
      number = _number(num_searched, index.num_blocks)
    return index.search(QueryBatch(token_ids, vectors), number)

  def rank(
    self,
    token_ids: Int32[np.ndarray, "b q"],
    *,
    num_searched: int | None = None,
  ) -> Ranking:
    """Retrieves blocks, by default those of the ranker, sorted by score.

    An approximate index only chooses the blocks: f(x, z) is computed from the
    generation's stored vectors, as in training. The number of queries must be
    a multiple of the number of devices.
    """
    if self._by_index_order:
      found = self.search(token_ids, num_searched=num_searched)
      scale = self._score_scale if self._index_scores else 1.0
      found = in_order(found.rows, scale * found.scores)
    else:
      vectors = self._embed(token_ids)
      found = self.search(token_ids, vectors, num_searched=num_searched)
      stored = self._generation.vectors(found.rows)
      scores = np.einsum("bd,bkd->bk", vectors, stored)
      found = in_order(found.rows, self._score_scale * scores)
    probabilities = softmax(np.float64(found.scores), axis=-1)
    return Ranking(found.rows, found.scores, probabilities)


def _number(num_searched: int, num_blocks: int) -> int:
  """Returns how many blocks are searched for, which a corpus may not have."""
  if num_searched < 1:
    raise SearchError(f"num_searched={num_searched}; want at least 1")
  return min(num_searched, num_blocks)
