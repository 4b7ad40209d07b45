"""Retrieval in two hops: for a query, and for the query with a found block.

A path is a block z1 and a second block z2, or the null block if one suffices:

    p(z1, z2 | x) = p(z1 | x) p(z2 | z1, x)

Both factors are softmaxes of f within a beam. The first is over the blocks that
a search for x finds. The second is over the null block and the blocks that a
search for x together with z1 finds, as in MDR (Xiong et al. 2020, arXiv
2009.12756). The order of two blocks does not matter: the probability of a path
is the sum over both orders.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models import AnyArray
from realm_jax.models.components import embed_blocks
from realm_jax.models.retriever import relevance
from realm_jax.settings import PositiveInt, require_valid

# log p of cells that are not paths. It is finite because gradients of −∞ could
# be NaN.
NOT_A_PATH = -1e9


class Cells(NamedTuple):
  """All c = n · (m + 1) pairs of a first and a second block of each query.

  Attributes:
    is_path: Whether a cell is a path, which never has the same block twice.
    twin: Cell with the same two blocks in the other order, or −1.
  """

  is_path: Bool[AnyArray, "b c"]
  twin: Int[AnyArray, "b c"]


@dataclasses.dataclass(frozen=True)
class TwoHops:
  """A search for paths of two blocks.

  Attributes:
    first_beam: Number n of blocks to find for a query.
    second_beam: Number m of blocks to find for the query with each first block.
  """

  first_beam: PositiveInt = 8
  second_beam: PositiveInt = 8

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def num_found(self) -> int:
    """Number of blocks that each search must find.

    The second search may find the first block again.
    """
    return max(self.first_beam, self.second_beam + 1)

  def second_places(
    self,
    first: Int[np.ndarray, "b n"],
    second: Int[np.ndarray, "b n k"],
  ) -> Int[np.ndarray, "b n m"]:
    """Returns the positions of second blocks in the results of the search.

    If the second search finds the first block again, it comes last.
    """
    is_first = second == first[..., None]
    order = np.argsort(is_first, axis=-1, kind="stable")
    return order[..., : self.second_beam]

  def cells(
    self, first: Int[np.ndarray, "b n"], second: Int[np.ndarray, "b n m"]
  ) -> Cells:
    """Returns the cells for the rows of first and second blocks."""
    null = np.full((*first.shape, 1), NULL_ROW, second.dtype)
    ends = np.concatenate([null, second], axis=-1)
    is_path = ends != first[..., None]
    # At [i, j, k]: whether the j-th second block of first block i is first
    # block k.
    is_same = ends[:, :, :, None] == first[:, None, None, :]
    # At [i, j, k, l]: also whether the l-th second block of k is i.
    is_twin = is_same[..., None] & is_same.transpose(0, 3, 1, 2)[:, :, None]
    is_twin = is_twin.reshape(len(first), -1, is_path[0].size)
    has_twin = is_twin.any(axis=-1) & is_path.reshape(len(first), -1)
    twin = np.where(has_twin, is_twin.argmax(axis=-1), -1).astype(np.int32)
    return Cells(is_path.reshape(len(first), -1), twin)

  def log_p(
    self,
    first: Float[AnyArray, "b n"],
    second: Float[AnyArray, "b n e"],
    cells: Cells,
  ) -> Float[AnyArray, "b c"]:
    """Returns log p of each cell, without its twin.

    Args:
      first: f(x, z1) of the first blocks.
      second: f of x together with z1, for the null block and the second blocks.
      cells: Cells of these blocks.
    """
    xp = first.__array_namespace__()
    is_path = xp.asarray(cells.is_path)
    is_end = is_path.reshape(second.shape)
    following = _log_softmax(xp.where(is_end, second, NOT_A_PATH))
    log_p = _log_softmax(first)[..., None] + following
    return xp.where(is_path, log_p.reshape(is_path.shape), NOT_A_PATH)

  def best(
    self, log_p: Float[AnyArray, "b c"], cells: Cells, k: int
  ) -> Int[AnyArray, "b k"]:
    """Returns the cells of the best k distinct paths."""
    xp = log_p.__array_namespace__()
    twin, cell = xp.asarray(cells.twin), xp.arange(log_p.shape[1])[None]
    log_p_of_twin = xp.take_along_axis(log_p, xp.maximum(twin, 0), axis=1)
    # Keeps the more likely order of two blocks, or the earlier cell.
    is_behind = (log_p_of_twin > log_p) | (
      (log_p_of_twin == log_p) & (twin < cell)
    )
    both = distinct_log_p(log_p, cell, cells)
    both = xp.where(is_behind & (twin >= 0), NOT_A_PATH, both)
    return xp.argsort(-both, axis=1, stable=True)[:, :k]

  def to_read(
    self,
    first: Float[np.ndarray, "b n"],
    second: Float[np.ndarray, "b n m"],
    cells: Cells,
    k: int,
  ) -> Int[np.ndarray, "b k"]:
    """Returns the cells of paths that a step reads, before it has its scores.

    Half of them are the best first blocks alone, because their scores with the
    null block are not known yet. The others are the best paths of two blocks.

    Args:
      first, second: Scores of the two searches.
      cells: Cells of the blocks.
      k: Number of paths.
    """
    alone = min(k // 2, first.shape[1])
    none = np.full((*first.shape, 1), NOT_A_PATH, second.dtype)
    log_p = self.log_p(first, np.concatenate([none, second], axis=-1), cells)
    log_p = log_p.reshape(none.shape[0], none.shape[1], -1)
    log_p[..., 0] = NOT_A_PATH
    pairs = self.best(log_p.reshape(len(first), -1), cells, k - alone)
    singles = np.arange(alone) * log_p.shape[-1]
    singles = np.broadcast_to(singles, (len(first), alone))
    return np.concatenate([singles, pairs], axis=1).astype(np.int32)

  def search(
    self, run: Any, token_ids: Int32[np.ndarray, "b q"], k: int
  ) -> SearchResult:
    """Returns the best k paths of each query, scored by log p.

    See `PathSearch`.
    """
    firsts = run.search_blocks(token_ids, self.first_beam)
    retriever = run.components.hop_retriever
    queries = retriever.hop_queries(token_ids, run.gather(firsts.rows))
    batch, beam, length = queries.shape
    flat = np.asarray(queries).reshape(-1, length)
    seconds = run.search_blocks(flat, self.second_beam + 1, hop=True)
    rows = seconds.rows.reshape(batch, beam, -1)
    places = self.second_places(firsts.rows, rows)
    rows, scores = (
      np.take_along_axis(x.reshape(batch, beam, -1), places, axis=-1)
      for x in (seconds.rows, seconds.scores)
    )
    # An index with its own scores has none for the null block, so it gets 0.
    of_null = np.zeros((batch, beam, 1), np.float32)
    if not run.snapshot.index.has_own_scores:
      (null,) = run.compute(
        embed_blocks,
        retriever,
        run.params["retriever"],
        token_ids=run.gather(np.array([NULL_ROW])),
      )
      vectors = run.embed_tokens(flat, hop=True)
      of_null[:] = (vectors @ null).reshape(of_null.shape)
      of_null *= retriever.score_scale
    cells = self.cells(firsts.rows, rows)
    second = np.concatenate([of_null, scores], axis=-1)
    log_p = self.log_p(firsts.scores, second, cells)
    chosen = np.asarray(self.best(log_p, cells, k))
    best = np.asarray(distinct_log_p(log_p, chosen, cells))
    # If there are fewer than k paths, the rest would be read twice.
    number = int((best > NOT_A_PATH / 2).sum(axis=1).min(initial=k))
    best, chosen = best[:, :number], chosen[:, :number]
    ends = np.concatenate([np.full_like(rows[..., :1], NULL_ROW), rows], -1)
    starts = np.broadcast_to(firsts.rows[..., None], ends.shape)
    paths = np.stack([starts, ends], axis=-1).reshape(batch, -1, 2)
    paths = np.take_along_axis(paths, chosen[..., None], axis=1)
    return SearchResult(paths[..., 0], best, paths=paths)


def distinct_log_p(
  log_p: Float[AnyArray, "b c"], places: Int[AnyArray, "#b k"], cells: Cells
) -> Float[AnyArray, "b k"]:
  """Returns log p of the paths in some cells, summed over both orders."""
  xp = log_p.__array_namespace__()
  places = xp.broadcast_to(places, (len(log_p), places.shape[1]))
  twin = xp.take_along_axis(xp.asarray(cells.twin), places, axis=1)
  forward = xp.take_along_axis(log_p, places, axis=1)
  backward = xp.take_along_axis(log_p, xp.maximum(twin, 0), axis=1)
  return xp.where(twin >= 0, xp.logaddexp(forward, backward), forward)


def _log_softmax(scores: Float[AnyArray, "*b n"]) -> Float[AnyArray, "*b n"]:
  xp = scores.__array_namespace__()
  scores = scores - scores.max(axis=-1, keepdims=True)
  return scores - xp.log(xp.exp(scores).sum(axis=-1, keepdims=True))


def hop_scores(
  queries: Float[Array, "b d"],
  hop_queries: Float[Array, "b n d"],
  candidates: Float[Array, "b k d"],
  *,
  score_scale: float,
) -> tuple[Float[Array, "b n"], Float[Array, "b n e"]]:
  """Returns f of both hops, as arguments of `TwoHops.log_p`.

  Args:
    queries, hop_queries: Vectors of x, and of x with each first block.
    candidates: Vectors of the null block, the first blocks, and the second
      blocks of each first block.
    score_scale: Scale of the retriever's scores.
  """
  batch, beam, dim = hop_queries.shape
  first = relevance(
    queries, candidates[:, 1 : 1 + beam], score_scale=score_scale
  )
  second = candidates[:, 1 + beam :].reshape(batch * beam, -1, dim)
  null = jnp.repeat(candidates[:, :1], beam, axis=0)
  ends = jnp.concatenate([null, second], axis=1)
  scores = relevance(
    hop_queries.reshape(-1, dim), ends, score_scale=score_scale
  )
  return first, scores.reshape(batch, beam, -1)
