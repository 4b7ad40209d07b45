"""Retrieval one step ahead of the devices.

Programs for the devices are dispatched by the caller's thread alone, always in
the same order: they contain collectives, which all processes must reach in the
same order. What only the host does (a search in ScaNN or BM25, the gathering
of tokens) runs in one background thread while a step computes.
"""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from realm_jax.indexes.protocol import (
  DeviceIndex,
  Index,
  QueryBatch,
  SearchResult,
)
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding

B = TypeVar("B")

NOTHING_RETRIEVED = SearchResult(
  rows=np.zeros((0, 0), np.int32), scores=np.zeros((0, 0), np.float32)
)
# From a function that retrieves to what it retrieved, a batch on the host and
# metrics of the host.
Retrieve = Callable[[], SearchResult]
Assemble = Callable[[Retrieve], tuple[SearchResult, B, dict[str, float]]]


@dataclasses.dataclass(frozen=True)
class Prepared(Generic[B]):
  """A step's batch on the devices, and how it was made.

  Attributes:
    batch: Batch on the devices.
    retrieved: Blocks that were retrieved. A checkpoint keeps them, so that a
      resumed run need not search with parameters that no longer exist.
    metrics: Metrics of the host.
    searched: What the step searches, if it retrieves its own candidates.
  """

  batch: B
  retrieved: SearchResult
  metrics: dict[str, float]
  searched: Any = None


class RetrievalPipeline(Generic[B]):
  """Embeds queries, searches, and puts a step's batch on the devices.

  `embed_queries` takes the query tower's parameters and token ids.
  """

  def __init__(
    self,
    embed_queries: Callable[[Params, jax.Array], jax.Array],
    *,
    mesh: Mesh,
  ):
    self._mesh = mesh
    self._embed = jax.jit(
      embed_queries, out_shardings=sharding.batch_sharding(mesh)
    )
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="retrieval")

  def embed(
    self, token_ids: Int[np.ndarray, "b q"], query_params: Params
  ) -> Float[Array, "n d"]:
    """Embeds this process's queries; returns the vectors of all processes'."""
    queries = sharding.to_devices({"query": token_ids}, self._mesh)["query"]
    with jax.set_mesh(self._mesh):
      return self._embed(query_params, queries)

  def search(
    self,
    token_ids: Int[np.ndarray, "b q"],
    vectors: Float[Array, "n d"] | None,
    *,
    index: Index,
    num_blocks: int,
    assemble: Assemble[B],
  ) -> Future[Prepared[B]]:
    """Dispatches the devices' part and leaves the rest to the thread.

    Args:
      token_ids: Queries of this process.
      vectors: Vectors of the queries of all processes, if the index needs them.
      index: Index to search.
      num_blocks: Number of blocks to retrieve for each query.
      assemble: Function that makes the batch; it runs in the thread.
    """
    on_device: tuple[jax.Array, jax.Array] | None = None
    if vectors is not None and isinstance(index, DeviceIndex):
      on_device = index.search_on_device(vectors, num_blocks)

    def retrieve() -> SearchResult:
      if on_device is not None:
        scores, rows = map(sharding.local_rows, on_device)
        return SearchResult(rows=rows, scores=scores)
      local = None if vectors is None else sharding.local_rows(vectors)
      return index.search(QueryBatch(token_ids, local), num_blocks)

    return self._thread.submit(self._finish, retrieve, assemble)

  def reuse(
    self, retrieved: SearchResult, assemble: Assemble[B]
  ) -> Future[Prepared[B]]:
    """Makes the batch of an earlier search, which a checkpoint has kept."""
    return self._thread.submit(self._finish, lambda: retrieved, assemble)

  def without_search(self, assemble: Assemble[B]) -> Future[Prepared[B]]:
    """Makes a batch that needs no index; its metrics have no search times."""
    return self._thread.submit(self._finish, None, assemble)

  def _finish(
    self, retrieve: Retrieve | None, assemble: Assemble[B]
  ) -> Prepared[B]:
    start = searched = time.perf_counter()

    def timed() -> SearchResult:
      nonlocal searched
      retrieved = retrieve() if retrieve else NOTHING_RETRIEVED
      searched = time.perf_counter()
      return retrieved

    retrieved, batch, metrics = assemble(timed)
    placed = sharding.to_devices(batch, self._mesh)
    if retrieve is not None:
      metrics["search_ms"] = 1e3 * (searched - start)
      metrics["gather_ms"] = 1e3 * (time.perf_counter() - searched)
    return Prepared(placed, retrieved, metrics)

  def close(self) -> None:
    """Ends the background thread."""
    self._thread.shutdown(wait=True, cancel_futures=True)
