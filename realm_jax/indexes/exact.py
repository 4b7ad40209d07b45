"""Exact search for the largest inner products, on the devices.

The vectors are an argument of one compiled program, padded to a capacity, so a
new snapshot of the same capacity is searched without compiling anything.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.errors import RealmError
from realm_jax.indexes import exact_search
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  QueryBatch,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import MESH_AXES, make_mesh
from realm_jax.settings import Named, PositiveInt
from realm_jax.storage.local_disk import drop_pages

_ROWS_PER_COPY = 1 << 16
# On CPUs, jax uses arrays that are aligned to this many bytes without a copy.
_ALIGNMENT = 64
# Rows that are in memory at once while the recall of an index is measured.
_ROWS_PER_PART = 1 << 18
# Relative difference below which scores count as equal: among blocks with the
# same text, any is a correct result.
_TIE = 1e-5


def capacity_for(num_blocks: int, *, devices: int = 1) -> int:
  """Returns the number of rows to allocate, so that a corpus can grow a little.

  Each device's share is rounded up to a multiple of 2ⁿ⁻³, where 2ⁿ is the power
  of two below it. This takes at most an eighth more memory, with a handful of
  sizes per doubling.
  """
  share = max(1, -(-num_blocks // devices))
  step = max(exact_search.GROUP, 2 ** max(0, share.bit_length() - 4))
  return devices * (-(-share // step) * step)


@dataclasses.dataclass(frozen=True)
class ExactConfig(IndexConfig):
  """Exact search.

  Attributes:
    dtype: Type in which the devices hold the vectors, `float32` or `bfloat16`;
      products accumulate in float32 either way.
    rows_per_step: Rows that are scored at once, which bounds the temporaries.
      None chooses by k, the number of queries and the device.
    capacity: Rows to allocate over all devices; None is `capacity_for(N)`.
  """

  kind: ClassVar[str] = "exact"
  has_files: ClassVar[bool] = False
  dtype: Annotated[Literal["float32", "bfloat16"], Named(None)] = "float32"
  rows_per_step: PositiveInt | None = None
  capacity: PositiveInt | None = None

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "ExactIndex":
    """Copies the vectors to the devices."""
    del directory
    return ExactIndex(blocks.embedded(), self, mesh=blocks.mesh)


_DEFAULTS = ExactConfig()


class ExactIndex(Index):
  """Searches the inner products with every block.

  The vectors, [N, d], are read once, a device's share at a time, and sharded
  over all devices of the mesh, by default one. The attribute `vectors` is the
  array on the devices, padded to the capacity, and `count` is the number of
  blocks, also on the devices.
  """

  kind = "exact"
  needs_vectors = True

  def __init__(
    self,
    vectors: Rows,
    config: ExactConfig = _DEFAULTS,
    *,
    mesh: Mesh | None = None,
  ):
    self.num_blocks, self.dim = vectors.shape
    mesh = mesh or make_mesh(devices=jax.local_devices()[:1])
    devices = mesh.size
    capacity = config.capacity or capacity_for(self.num_blocks, devices=devices)
    if capacity < self.num_blocks or capacity % devices:
      raise RealmError(
        f"capacity={capacity} for {self.num_blocks} blocks on {devices} "
        "devices; want a multiple of the devices that holds every block"
      )
    self.capacity, self._mesh, self._config = capacity, mesh, config
    by_rows = NamedSharding(mesh, PartitionSpec(MESH_AXES))

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
      assert index is not None
      start, stop, _ = index[0].indices(capacity)
      return _padded(vectors, start, stop, jnp.dtype(config.dtype))

    self.vectors = jax.make_array_from_callback(
      (capacity, self.dim), by_rows, part
    )
    self.count = sharding.replicate(np.array(self.num_blocks, np.int32), mesh)

  def plan(self, k: int, *, num_queries: int) -> exact_search.SearchPlan:
    """Returns the settings of the program that finds the k best blocks."""
    check_k(k, self.num_blocks)
    return exact_search.make_plan(
      k,
      num_queries=num_queries,
      num_rows=self.capacity,
      devices=self._mesh.size,
      platform=self._mesh.devices.flat[0].platform,
      rows_per_step=self._config.rows_per_step,
    )

  def search_on_device(
    self, vectors: Float[Array, "b d"], k: int
  ) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
    """Dispatches a search and returns scores and rows without waiting.

    Queries and results are sharded like batches.
    """
    plan = self.plan(k, num_queries=len(vectors))
    return exact_search.search(
      vectors, self.vectors, self.count, plan=plan, mesh=self._mesh
    )

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks of each of this process's queries."""
    vectors = check_vectors(queries, self.dim)
    count = len(vectors)
    padding = -count % len(sharding.row_groups(self._mesh).local)
    padded: Any = np.pad(vectors, ((0, padding), (0, 0)))
    on_device = sharding.to_devices(padded, self._mesh)
    scores, rows = self.search_on_device(on_device, k)
    return SearchResult(
      rows=sharding.local_rows(rows)[:count],
      scores=sharding.local_rows(scores)[:count],
    )


def _padded(
  vectors: Rows, start: int, stop: int, dtype: np.dtype
) -> Float[np.ndarray, "n d"]:
  """Copies rows start … stop, with zeros for rows past the last.

  The copy is aligned, so that jax on CPUs uses it without another copy.
  """
  num_blocks, dim = vectors.shape
  size = (stop - start) * dim * dtype.itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  first = -memory.ctypes.data % _ALIGNMENT
  padded = memory[first : first + size].view(dtype).reshape(-1, dim)
  real = max(0, min(stop, num_blocks) - start)
  # A slice that crosses files is a copy, so slices are kept small.
  for i in range(0, real, _ROWS_PER_COPY):
    rows = slice(start + i, start + min(i + _ROWS_PER_COPY, real))
    part = vectors[rows]
    padded[i : i + len(part)] = part
    drop_pages(part)
  padded[real:] = 0
  return padded


# --- Recall against exact search ----------------------------------------


class GroundTruth:
  """The k best blocks of a sample of queries, by exact search.

  The vectors of all blocks are searched in parts.
  """

  def __init__(self, vectors: Rows, queries: QueryBatch, k: int):
    self.queries, self.k = queries, k
    # `Rows` other than arrays have a method to gather rows in any order.
    self._gather: Any = getattr(vectors, "gather", vectors.__getitem__)
    self._query_vectors = check_vectors(queries, vectors.shape[1])
    best = np.zeros((len(self._query_vectors), 0), np.float32)
    num_blocks, _ = vectors.shape
    size = min(_ROWS_PER_PART, num_blocks)
    for start in range(0, num_blocks, size):
      rows = vectors[start : start + size]
      part = ExactIndex(rows, ExactConfig(capacity=size))
      result = part.search(queries, min(k, part.num_blocks))
      best = np.concatenate([best, result.scores], axis=1)
      best = -np.sort(-best, axis=1)[:, :k]
    self._best = best

  def recall(self, result: SearchResult) -> float:
    """Returns the share of blocks that score no worse than the k-th best.

    k is the number of retrieved blocks, at most the constructor's k.
    """
    vectors = self._gather(result.rows).astype(np.float32)
    scores = np.einsum("bd,bkd->bk", self._query_vectors, vectors)
    k = result.rows.shape[1]
    worst = self._best[:, k - 1 : k]
    return float(np.mean(scores >= worst - _TIE * abs(worst)))


def measure_recall(
  index: Index, vectors: Rows, queries: QueryBatch, ks: Sequence[int]
) -> dict[str, float]:
  """Measures recall@k against exact search; returns it by k, as text.

  A block counts as found if it scores no lower than exact search's k-th. Values
  of k above the number of blocks are skipped.
  """
  ks = [k for k in ks if k <= index.num_blocks]
  if not ks:
    return {}
  truth = GroundTruth(vectors, queries, max(ks))
  return {str(k): truth.recall(index.search(queries, k)) for k in ks}
