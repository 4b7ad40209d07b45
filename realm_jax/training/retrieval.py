"""Retrieval of candidates: search, drop the source, take k, add the null block.

A stage describes its retrieval by a `Retrieval`. The host, a step with its own
retrieval and all evaluations share the code that chooses candidates among the
retrieved blocks; it takes arrays of NumPy and of jax.
"""

import dataclasses
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.models import AnyArray

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Retrieval:
  """How the candidates of a query are retrieved.

  Attributes:
    num_kept: Number k of retrieved blocks that are kept.
    setting: Setting that determines `num_kept`, for error messages.
    num_required: Smallest number of blocks that a corpus must have, by default
      `num_kept`. A corpus with fewer than `num_kept` is searched whole.
    num_spare: Number of additional blocks to search for, to replace verbatim
      copies of the source, which are dropped.
    drop_source: Whether the block that a query was taken from, whose retrieval
      would be trivial, and its verbatim copies are dropped (section 3.4).
    null_block: Whether the null block is prepended, as candidate 0.
    current_queries: Whether queries are embedded with the current parameters
      instead of the query tower that the snapshot was published with.
    reads: Data of the blocks that the step reads: only their tokens, also their
      stored vectors, or also the index's scores.
    in_step: Whether the step can do this retrieval itself.
  """

  num_kept: int
  setting: str = "NUM_CANDIDATES"
  num_required: int | None = None
  num_spare: int = 0
  drop_source: bool = False
  null_block: bool = False
  current_queries: bool = True
  reads: Literal["tokens", "vectors", "scores"] = "tokens"
  in_step: bool = False

  def num_searched(self, num_blocks: int) -> int:
    """Returns the number of blocks to search for in a corpus of `num_blocks`.

    Raises:
      RealmError: The corpus has too few blocks.
    """
    required = self.num_kept if self.num_required is None else self.num_required
    # A source that will be dropped still counts as a search result.
    needed = required + self.drop_source
    if needed > num_blocks:
      source = ", one of them the query's own" if self.drop_source else ""
      raise RealmError(
        f"each query needs {needed} blocks{source}, but the corpus has "
        f"{num_blocks}; lower {self.setting}"
      )
    spare = self.num_spare if self.drop_source else 0
    return min(self.num_kept + self.drop_source + spare, num_blocks)

  def candidate_positions(
    self,
    is_source: Bool[AnyArray, "b n"],
    preferred: Bool[AnyArray, "b n"] | None = None,
  ) -> Int[AnyArray, "b k"]:
    """Chooses the candidates of each query among n retrieved blocks.

    Args:
      is_source: Whether a block is the query's source or a copy of it.
      preferred: Whether a block is taken before others with better scores.

    Returns:
      Positions of the candidates among the n blocks, best first, and `NULL_ROW`
      for the null block. If too few blocks are left without the source and its
      copies, the rest are null blocks.
    """
    xp = is_source.__array_namespace__()
    positions = xp.broadcast_to(xp.arange(is_source.shape[1]), is_source.shape)
    if preferred is not None:
      positions = xp.argsort(~preferred, axis=1, stable=True)
      is_source = xp.take_along_axis(is_source, positions, axis=1)
    if self.drop_source:
      order = xp.argsort(is_source, axis=1, stable=True)
      positions = xp.take_along_axis(positions, order, axis=1)
      dropped = xp.take_along_axis(is_source, order, axis=1)
      positions = xp.where(dropped, NULL_ROW, positions)
    positions = positions[:, : self.num_kept]
    if self.null_block:
      positions = xp.pad(positions, ((0, 0), (1, 0)), constant_values=NULL_ROW)
    return positions


def take_candidates(arrays: T, indices: Int[Array, "b k"]) -> T:
  """Returns, of a tree of arrays [b n …], the entries at these indices."""

  def take(x: AnyArray) -> Array:
    index = indices.reshape(*indices.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(jnp.asarray(x), index, axis=1)

  return jax.tree.map(take, arrays)


def rows_at(
  rows: Int[AnyArray, "b n"], positions: Int[AnyArray, "b k"]
) -> Int[AnyArray, "b k"]:
  """Returns the rows at the positions that `candidate_positions` chose."""
  xp = rows.__array_namespace__()
  candidates = xp.take_along_axis(rows, xp.maximum(positions, 0), axis=1)
  return xp.where(positions == NULL_ROW, NULL_ROW, candidates)
