"""Exact search on the devices: the largest inner products, block by block.

The vectors are arguments of one compiled program, padded to a capacity, so a
new generation of the same capacity is searched without compiling anything.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.indexes import exact_search, mapped
from realm_jax.indexes.protocol import (
  PLAIN,
  Blocks,
  BuildOptions,
  PathLike,
  QueryBatch,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import DATA_AXIS

_ROWS_PER_COPY = 1 << 16
# From such an address, in bytes, jax on CPUs takes an array without a copy.
_ALIGNMENT = 64


def capacity_for(num_blocks: int, *, devices: int = 1) -> int:
  """Rows to allocate, so that a corpus may grow by a little in place.

  Each device's share is rounded up to an eighth of the power of two below it:
  at most an eighth more memory, and a handful of sizes per doubling.
  """
  share = max(1, -(-num_blocks // devices))
  step = max(exact_search.GROUP, 2 ** max(0, share.bit_length() - 4))
  return devices * (-(-share // step) * step)


@dataclasses.dataclass(frozen=True)
class ExactConfig:
  """Exact search.

  Attributes:
    dtype: of the vectors on the devices, `float32` or `bfloat16`; products
      accumulate in float32 either way.
    rows_per_step: rows that are scored at once; bounds the temporaries. None
      chooses by k, the number of queries and the device.
    capacity: rows to allocate; None leaves room for a little growth.
    recall_target: how many of the best to find on average, from 0 to 1, by
      `lax.approx_max_k`: much faster on TPUs. None finds all of them.
  """

  kind: ClassVar[str] = "exact"
  may_crash: ClassVar[bool] = False
  dtype: str = "float32"
  rows_per_step: int | None = None
  capacity: int | None = None
  recall_target: float | None = None

  def build(
    self, blocks: Blocks, options: BuildOptions = PLAIN
  ) -> "ExactIndex":
    """Copies the vectors to the devices."""
    if blocks.vectors is None:
      raise ValueError("exact search needs the blocks' vectors; embed them")
    return ExactIndex(
      blocks.vectors,
      mesh=options.mesh,
      dtype=self.dtype,
      rows_per_step=self.rows_per_step,
      capacity=self.capacity,
      recall_target=self.recall_target,
    )

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Mesh | None = None
  ) -> "ExactIndex":
    """The same as `build`: the vectors are all there is."""
    del directory
    return self.build(blocks, BuildOptions(mesh=mesh))


class ExactIndex:
  """Inner products with every block.

  Args:
    vectors: [N, d] in row order; read once, a device's share at a time.
    mesh: rows are spread over its data axis; None uses one device.
    dtype: of the vectors on the devices.
    rows_per_step: rows that are scored at once; None chooses.
    capacity: rows to allocate over all devices; None is `capacity_for(N)`.
    recall_target: of `lax.approx_max_k`; None finds exactly the best.
  """

  kind = "exact"
  needs_vectors = True

  def __init__(
    self,
    vectors: Rows,
    *,
    mesh: Mesh | None = None,
    dtype: str = "float32",
    rows_per_step: int | None = None,
    capacity: int | None = None,
    recall_target: float | None = None,
  ):
    if recall_target is not None and not 0 < recall_target <= 1:
      raise ValueError(
        f"recall_target={recall_target}; want a share of the best above 0 and "
        "up to 1, or None for all of them"
      )
    self.num_blocks, self.dim = vectors.shape
    self.report: dict[str, Any] = {}
    devices = 1 if mesh is None else mesh.shape[DATA_AXIS]
    capacity = capacity or capacity_for(self.num_blocks, devices=devices)
    if capacity < self.num_blocks or capacity % devices:
      raise ValueError(
        f"capacity={capacity} for {self.num_blocks} blocks on {devices} "
        "devices; want a multiple of the devices that holds every block"
      )
    self.capacity = capacity
    self._mesh = mesh
    self._rows_per_step = rows_per_step
    self._recall_target = recall_target
    self._devices = devices
    if mesh is None:
      self._sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    else:
      self._sharding = NamedSharding(mesh, PartitionSpec(DATA_AXIS))

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
      assert index is not None
      start, stop, _ = index[0].indices(capacity)
      return _padded(vectors, start, stop, jnp.dtype(dtype))

    self._vectors = jax.make_array_from_callback(
      (capacity, self.dim), self._sharding, part
    )
    self._count = jnp.int32(self.num_blocks)
    if mesh is not None:
      everywhere = NamedSharding(mesh, PartitionSpec())
      count = np.int32(self.num_blocks)
      self._count = jax.make_array_from_callback(
        (), everywhere, lambda _: count
      )

  def search_on_device(
    self, queries: Float[Array, "b d"], k: int
  ) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
    """Scores and rows, dispatched and not waited for.

    Args:
      queries: with a mesh, over its data axis, which divides b.
      k: how many blocks for each query.

    Raises:
      SearchError: k is not in 1 … num_blocks.
    """
    check_k(k, self.num_blocks)
    plan = exact_search.make_plan(
      k,
      num_queries=len(queries),
      num_rows=self.capacity // self._devices,
      rows_per_step=self._rows_per_step,
      recall_target=self._recall_target,
      platform=next(iter(self._sharding.device_set)).platform,
    )
    return exact_search.search(
      queries, self._vectors, self._count, plan=plan, mesh=self._mesh
    )

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """The k best blocks of each of this process's queries."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    count = len(vectors)
    if self._mesh is None:
      on_device = jax.device_put(vectors, self._sharding)
    else:
      share = max(1, self._mesh.shape[DATA_AXIS] // jax.process_count())
      padding = -count % share
      on_device = jax.make_array_from_process_local_data(
        self._sharding, np.pad(vectors, ((0, padding), (0, 0)))
      )
    scores, rows = self.search_on_device(on_device, k)
    return SearchResult(
      rows=rules.local_rows(rows)[:count],
      scores=rules.local_rows(scores)[:count],
    )


def _padded(
  vectors: Rows, start: int, stop: int, dtype: np.dtype
) -> Float[np.ndarray, "n d"]:
  """Rows start … stop, zeros where there are none, in memory of their own.

  jax on CPUs takes that memory as it is, so that the vectors are there once.
  """
  num_blocks, dim = vectors.shape
  size = (stop - start) * dim * dtype.itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  first = -memory.ctypes.data % _ALIGNMENT
  padded = memory[first : first + size].view(dtype).reshape(-1, dim)
  real = max(0, min(stop, num_blocks) - start)
  # Slices of vectors from several files are copies: small ones.
  for i in range(0, real, _ROWS_PER_COPY):
    rows = slice(start + i, start + min(i + _ROWS_PER_COPY, real))
    part = vectors[rows]
    padded[i : i + len(part)] = part
    mapped.let_go(part)
  padded[real:] = 0
  return padded
