"""Retrieval one step ahead of the device.

Programs for the devices are dispatched by the caller's thread alone, always
in the same order, since they hold collectives that all processes must reach
in the same order; what only the host does (a search in ScaNN or BM25, the
gathering of tokens) runs in one background thread while a step computes.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from realm_jax.indexes.protocol import QueryBatch, SearchResult
from realm_jax.partitioning import rules

Arrays = dict[str, np.ndarray]
NOTHING_FOUND = SearchResult(
  rows=np.zeros((0, 0), np.int32), scores=np.zeros((0, 0), np.float32)
)
# From what was found to the arrays of a step and metrics of the host's.
Assemble = Callable[[SearchResult], tuple[Arrays, dict[str, float]]]


class Prepared(NamedTuple):
  """A step's batch on the devices, and what made it.

  `found` is what a checkpoint keeps, so that a resumed run need not search
  again with parameters that are gone.
  """

  batch: dict[str, jax.Array]
  found: SearchResult
  metrics: dict[str, float]


class RetrievalPipeline:
  """Embeds queries, searches, and puts a step's arrays on the devices.

  Args:
    embed_queries: `(query tower's parameters, token ids) -> vectors`.
    mesh: the mesh of the run.
  """

  def __init__(self, embed_queries: Callable[..., jax.Array], *, mesh: Mesh):
    self._mesh = mesh
    self._embed = jax.jit(
      embed_queries, out_shardings=rules.batch_sharding(mesh)
    )
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="retrieval")

  def search(
    self,
    token_ids: np.ndarray,
    *,
    query_params: Any,
    index: Any,
    num_blocks: int,
    assemble: Assemble,
  ) -> Future[Prepared]:
    """Dispatches the device's part now and leaves the rest to the thread.

    Args:
      token_ids: this process's queries, int32 [b, q].
      query_params: the query tower's parameters, on the devices.
      index: the index to search.
      num_blocks: how many blocks are wanted for each query.
      assemble: makes the step's arrays of what is found; runs in the thread.
    """
    vectors = on_device = None
    if index.needs_vectors:
      queries = rules.to_devices({"query": token_ids}, self._mesh)["query"]
      vectors = self._embed(query_params, queries)
      if hasattr(index, "search_on_device"):
        on_device = index.search_on_device(vectors, num_blocks)

    def finish() -> Prepared:
      start = time.perf_counter()
      if on_device is not None:
        scores, rows = map(rules.local_rows, on_device)
        found = SearchResult(rows=rows, scores=scores)
      else:
        found = index.search(
          QueryBatch(
            token_ids=token_ids,
            vectors=None if vectors is None else rules.local_rows(vectors),
          ),
          num_blocks,
        )
      search_ms = 1e3 * (time.perf_counter() - start)
      return self._finish(found, assemble, search_ms=search_ms)

    return self._thread.submit(finish)

  def resume(self, found: SearchResult, assemble: Assemble) -> Future[Prepared]:
    """The batch of an earlier search, as a checkpoint kept it."""
    return self._thread.submit(self._finish, found, assemble, search_ms=0.0)

  def without_search(self, assemble: Assemble) -> Future[Prepared]:
    """A batch that needs no index."""

    def finish() -> Prepared:
      arrays, metrics = assemble(NOTHING_FOUND)
      batch = rules.to_devices(arrays, self._mesh)
      return Prepared(batch, NOTHING_FOUND, metrics)

    return self._thread.submit(finish)

  def _finish(
    self, found: SearchResult, assemble: Assemble, *, search_ms: float
  ) -> Prepared:
    start = time.perf_counter()
    arrays, metrics = assemble(found)
    batch = rules.to_devices(arrays, self._mesh)
    metrics["search_ms"] = search_ms
    metrics["gather_ms"] = 1e3 * (time.perf_counter() - start)
    return Prepared(batch, found, metrics)

  def close(self) -> None:
    """Ends the background thread."""
    self._thread.shutdown(wait=True, cancel_futures=True)
