"""The compiled program of exact search: a running top-k over steps of rows.

A step multiplies all queries with some rows, and merges the best of these rows
into the best so far. Temporaries only take the memory of one step, independent
of the number of rows.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, MODEL_AXIS

# Number of consecutive rows in a group. The k best rows of a step are in the k
# groups with the largest maxima; unlike a top-k, a maximum vectorizes.
GROUP = 32
# Maximum number of scores of a step. On CPUs, the scores stay in the cache
# until their maxima are taken. On other platforms, a step should be long
# compared to its kernel launches; GPUs need many.
_MAX_SCORES = {"cpu": 1 << 21, "gpu": 1 << 28, "tpu": 1 << 25}
_MAX_ROWS = {"cpu": 1 << 16, "gpu": 1 << 20, "tpu": 1 << 16}
_MIN_ROWS = 2048
# Every step merges k candidates per query, so a larger k wants fewer steps.
_ROWS_PER_K = 8

Best = tuple[Float[Array, "b k"], Int[Array, "b k"]]


@dataclasses.dataclass(frozen=True)
class SearchPlan:
  """Static settings of the program.

  Attributes:
    k: Number of rows for each query.
    rows_per_step: Rows that are scored at once, at most the rows of a device.
    rows_first: Whether scores are laid out by rows, then queries. On TPUs this
      avoids a copy for the maximum over rows; CPUs prefer the other layout.
  """

  k: int
  rows_per_step: int
  rows_first: bool = False


def make_plan(
  k: int,
  *,
  num_queries: int,
  num_rows: int,
  devices: int,
  platform: str,
  rows_per_step: int | None = None,
) -> SearchPlan:
  """Returns the settings of the program that finds the k best blocks.

  Numbers of queries and rows are totals over all devices. `platform` is as in
  `jax.Device.platform`.
  """
  scores = _MAX_SCORES[platform] // max(1, num_queries)
  fits = 1 << (max(1, scores).bit_length() - 1)
  at_least = 1 << (_ROWS_PER_K * k - 1).bit_length()
  rows = max(min(max(fits, _MIN_ROWS), _MAX_ROWS[platform]), at_least)
  return SearchPlan(
    k=k,
    rows_per_step=min(rows_per_step or rows, num_rows // devices),
    rows_first=platform == "tpu",
  )


@functools.partial(jax.jit, static_argnames=("plan", "mesh"))
def search(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  *,
  plan: SearchPlan,
  mesh: Mesh,
) -> Best:
  """Returns the k best rows of each query, best first, ties by rising row.

  The vectors are sharded over all axes of the mesh; the queries and the result
  are sharded like a batch. Rows from `num_blocks` on are padding; `num_blocks`
  is at least k.
  """

  def on_each_device(
    queries: Float[Array, "b d"],
    vectors: Float[Array, "n d"],
    num_blocks: Int[Array, ""],
  ) -> Best:
    # Every device scores all queries against its own rows. Then each collects
    # the results of all devices for its group's queries, and merges them.
    everyone = lax.all_gather(queries, BATCH_AXES, tiled=True)
    first_row = lax.axis_index(MESH_AXES) * len(vectors)
    local_best = _local_top_k(everyone, vectors, num_blocks, first_row, plan)
    scores, rows = (_own_queries(part) for part in local_best)
    # Devices come in row order, so the lower row still wins a tie.
    return _best_of(scores, rows, plan.k)

  by_group = PartitionSpec(BATCH_AXES)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(by_group, PartitionSpec(MESH_AXES), PartitionSpec()),
    out_specs=by_group,
    # The check would require the constants from which the running top-k starts
    # to be marked as varying over the axes.
    check_vma=False,
  )(queries, vectors, num_blocks)


def _own_queries(results: Shaped[Array, "all_b k"]) -> Shaped[Array, "b c"]:
  """Exchanges results, so that each device has all results of its queries."""
  k = results.shape[-1]
  groups = lax.axis_size(BATCH_AXES)
  results = results.reshape(groups, -1, k)
  results = lax.all_to_all(results, BATCH_AXES, split_axis=0, concat_axis=0)
  results = results.transpose(1, 0, 2)
  if lax.axis_size(MODEL_AXIS) > 1:
    # The devices of a group have the same queries, and each has received the
    # results of different devices. As `model` is the inner axis, gathering
    # along it keeps the results in row order.
    results = lax.all_gather(results, MODEL_AXIS, axis=2)
  return results.reshape(results.shape[0], -1)


def _best_of(
  scores: Float[Array, "b c"], rows: Int[Array, "b c"], k: int
) -> Best:
  """Returns the k best; among equal scores, the earlier ones."""
  scores, places = lax.top_k(scores, k)
  return scores, jnp.take_along_axis(rows, places, axis=1)


def _local_top_k(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  first_row: Int[Array, ""],
  plan: SearchPlan,
) -> Best:
  """Runs the top-k over steps of this device's rows, from `first_row` on."""
  queries = queries.astype(vectors.dtype)
  real = jnp.clip(num_blocks - first_row, 0, len(vectors))
  size = plan.rows_per_step

  def step(i: Int[Array, ""], best: Best) -> Best:
    # The last step starts early enough to be whole, and skips rows that have
    # been scored already.
    start = jnp.minimum(i * size, len(vectors) - size)
    part = lax.dynamic_slice_in_dim(vectors, start, size)
    factors = (part, queries) if plan.rows_first else (queries, part)
    scores = lax.dot_general(
      *factors,
      (((1,), (1,)), ((), ())),
      precision=lax.Precision.HIGHEST,
      preferred_element_type=jnp.float32,
    )
    rows = start + jnp.arange(size)
    is_new = (rows >= i * size) & (rows < real)
    candidates = _candidates(scores, is_new, first_row + rows, plan)
    # Earlier results come first because their rows are lower.
    scores, rows = (
      jnp.concatenate(parts, axis=1)
      for parts in zip(best, candidates, strict=True)
    )
    return _best_of(scores, rows, plan.k)

  shape = (len(queries), plan.k)
  best = jnp.full(shape, -jnp.inf), jnp.full(shape, -1)
  return lax.fori_loop(0, -(-real // size), step, best)


def _candidates(
  scores: Float[Array, "x y"],
  is_new: Bool[Array, " n"],
  rows: Int[Array, " n"],
  plan: SearchPlan,
) -> Best:
  """Returns rows of a step that include the k best of each query.

  The scores are [b, n], or with `rows_first` [n, b]. Rows that are not new are
  padding, or belong to an earlier step.
  """
  by_groups = len(rows) > 2 * plan.k * GROUP and len(rows) % GROUP == 0
  size = GROUP if by_groups else 1
  is_new, rows = is_new.reshape(-1, size), rows.reshape(-1, size)
  if plan.rows_first:
    scores = scores.reshape(*rows.shape, -1)
    maxima = jnp.where(is_new[..., None], scores, -jnp.inf).max(axis=1).T
  else:
    scores = scores.reshape(-1, *rows.shape)
    maxima = jnp.where(is_new, scores, -jnp.inf).max(axis=2)
  if not by_groups:
    return maxima, jnp.broadcast_to(rows.T, maxima.shape)
  # At most k − 1 groups hold a row that precedes a given member of the top k,
  # since each such group's maximum precedes it too. So the k groups with the
  # largest maxima (ties to the lower group) hold the whole top k.
  _, best = lax.top_k(maxima, plan.k)
  best = jnp.sort(best, axis=-1)
  queries = jnp.arange(len(best))[:, None]
  if plan.rows_first:
    inside = scores[best, :, queries]
  else:
    inside = scores[queries, best]
  inside = jnp.where(is_new[best], inside, -jnp.inf)
  shape = (len(best), plan.k * GROUP)
  return inside.reshape(shape), rows[best].reshape(shape)
