"""Exact search on the devices: the largest inner products, block by block.

The vectors are arguments of one compiled program, padded to a capacity, so a
new generation of the same capacity is searched without compiling anything.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.indexes.protocol import (
  Blocks,
  PathLike,
  QueryBatch,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import DATA_AXIS

# The k best of a block lie in the k groups of consecutive rows with the
# largest maxima, and a maximum vectorises where a top-k does not.
_GROUP = 32


def capacity_for(num_blocks: int, *, devices: int = 1) -> int:
  """Rows to allocate, so that a corpus may grow by a little in place.

  Each device's share is rounded up to an eighth of the power of two below it:
  at most an eighth more memory, and a handful of sizes per doubling.
  """
  share = max(1, -(-num_blocks // devices))
  step = max(_GROUP, 2 ** max(0, share.bit_length() - 4))
  return devices * (-(-share // step) * step)


@dataclasses.dataclass(frozen=True)
class ExactConfig:
  """Exact search.

  Attributes:
    dtype: of the vectors on the devices, `float32` or `bfloat16`; products
      accumulate in float32 either way.
    rows_per_step: rows that are scored at once; bounds the temporaries.
    capacity: rows to allocate; None leaves room for a little growth.
  """

  kind: ClassVar[str] = "exact"
  dtype: str = "float32"
  rows_per_step: int = 8192
  capacity: int | None = None

  def build(self, blocks: Blocks, *, mesh: Mesh | None = None) -> "ExactIndex":
    """Copies the vectors to the devices."""
    if blocks.vectors is None:
      raise ValueError("exact search needs the blocks' vectors; embed them")
    return ExactIndex(
      blocks.vectors,
      mesh=mesh,
      dtype=self.dtype,
      rows_per_step=self.rows_per_step,
      capacity=self.capacity,
    )

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Mesh | None = None
  ) -> "ExactIndex":
    """The same as `build`: the vectors are all there is."""
    del directory
    return self.build(blocks, mesh=mesh)


class ExactIndex:
  """Inner products with every block.

  Args:
    vectors: [N, d] in row order; read once, a device's share at a time.
    mesh: rows are spread over its data axis; None uses one device.
    dtype: of the vectors on the devices.
    rows_per_step: rows that are scored at once.
    capacity: rows to allocate over all devices; None is `capacity_for(N)`.
  """

  kind = "exact"
  needs_vectors = True

  def __init__(
    self,
    vectors: Rows,
    *,
    mesh: Mesh | None = None,
    dtype: str = "float32",
    rows_per_step: int = 8192,
    capacity: int | None = None,
  ):
    self.num_blocks, self.dim = vectors.shape
    devices = 1 if mesh is None else mesh.shape[DATA_AXIS]
    capacity = capacity or capacity_for(self.num_blocks, devices=devices)
    if capacity < self.num_blocks or capacity % devices:
      raise ValueError(
        f"capacity={capacity} for {self.num_blocks} blocks on {devices} "
        "devices; want a multiple of the devices that holds every block"
      )
    self.capacity = capacity
    self._mesh = mesh
    self._rows_per_step = min(rows_per_step, capacity // devices)
    if mesh is None:
      self._sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    else:
      self._sharding = NamedSharding(mesh, PartitionSpec(DATA_AXIS))

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
      assert index is not None
      start, stop, _ = index[0].indices(capacity)
      padded = np.zeros((stop - start, self.dim), jnp.dtype(dtype))
      real = max(0, min(stop, self.num_blocks) - start)
      padded[:real] = vectors[start : start + real]
      return padded

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
    return _search(
      queries,
      self._vectors,
      self._count,
      k=k,
      rows_per_step=self._rows_per_step,
      mesh=self._mesh,
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

  def save(self, directory: PathLike) -> None:
    """Nothing: a generation holds the vectors already."""
    del directory


@functools.partial(jax.jit, static_argnames=("k", "rows_per_step", "mesh"))
def _search(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  *,
  k: int,
  rows_per_step: int,
  mesh: Mesh | None,
) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
  local = functools.partial(_local_top_k, k=k, rows_per_step=rows_per_step)
  if mesh is None:
    return local(queries, vectors, num_blocks, first_row=0)

  def on_each_device(queries, vectors, num_blocks):
    # Every device scores all queries against its own rows; then each gathers
    # from the others what they found for its own queries, and merges.
    everyone = lax.all_gather(queries, DATA_AXIS, tiled=True)
    first_row = lax.axis_index(DATA_AXIS) * len(vectors)
    found = local(everyone, vectors, num_blocks, first_row=first_row)
    scores, rows = (
      _own_queries(part, lax.axis_size(DATA_AXIS)) for part in found
    )
    # Devices come in row order, so the lower row still wins a tie.
    scores, places = lax.top_k(scores, k)
    return scores, jnp.take_along_axis(rows, places, axis=1)

  rows_of = PartitionSpec(DATA_AXIS)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(rows_of, rows_of, PartitionSpec()),
    out_specs=rows_of,
    # The running top-k starts from constants, which the check would want
    # marked as varying over an axis that exists with a mesh alone.
    check_vma=False,
  )(queries, vectors, num_blocks)


def _own_queries(
  found: Array,  # [devices * b, k]: this device's finds for all queries.
  devices: int,
) -> Array:  # [b, devices * k]: all devices' finds for this device's queries.
  k = found.shape[-1]
  found = found.reshape(devices, -1, k)
  found = lax.all_to_all(found, DATA_AXIS, split_axis=0, concat_axis=0)
  return found.transpose(1, 0, 2).reshape(-1, devices * k)


def _local_top_k(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  *,
  first_row: Any,
  k: int,
  rows_per_step: int,
) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
  """A running top-k over steps of rows; a pad scores −∞."""
  queries = queries.astype(vectors.dtype)
  real = jnp.clip(num_blocks - first_row, 0, len(vectors))

  def step(i, best):
    # The last step starts early enough to be whole, and leaves out the rows
    # that the step before it has seen.
    start = jnp.minimum(i * rows_per_step, len(vectors) - rows_per_step)
    part = lax.dynamic_slice_in_dim(vectors, start, rows_per_step)
    scores = lax.dot_general(
      queries,
      part,
      (((1,), (1,)), ((), ())),
      precision=lax.Precision.HIGHEST,
      preferred_element_type=jnp.float32,
    )
    rows = start + jnp.arange(rows_per_step)
    is_new = (rows >= i * rows_per_step) & (rows < real)
    scores, columns = _top_k(jnp.where(is_new, scores, -jnp.inf), k)
    # What was found before comes first: its rows are lower.
    scores = jnp.concatenate([best[0], scores], axis=1)
    rows = jnp.concatenate([best[1], first_row + start + columns], axis=1)
    scores, places = lax.top_k(scores, k)
    return scores, jnp.take_along_axis(rows, places, axis=1)

  shape = (len(queries), k)
  best = jnp.full(shape, -jnp.inf), jnp.full(shape, -1)
  return lax.fori_loop(0, -(-real // rows_per_step), step, best)


def _top_k(
  scores: Float[Array, "b r"], k: int
) -> tuple[Float[Array, "b k2"], Int[Array, "b k2"]]:
  """The min(k, r) largest; of equals, the lower column.

  At most k − 1 groups can hold anything that comes before a member of the top
  k: each such group's own maximum comes before it too. So the k groups with
  the largest maxima (of equals, the lower) hold the whole top k.
  """
  b, r = scores.shape
  if r % _GROUP or r <= 2 * k * _GROUP:
    return lax.top_k(scores, min(k, r))
  groups = scores.reshape(b, r // _GROUP, _GROUP)
  _, chosen = lax.top_k(groups.max(axis=-1), k)
  chosen = jnp.sort(chosen, axis=-1)
  inside = jnp.take_along_axis(groups, chosen[..., None], axis=1)
  scores, places = lax.top_k(inside.reshape(b, k * _GROUP), k)
  group = jnp.take_along_axis(chosen, places // _GROUP, axis=1)
  return scores, group * _GROUP + places % _GROUP
