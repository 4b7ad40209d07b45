"""The compiled program of exact search: a running top-k over steps of rows.

A step multiplies all queries with some rows and takes the maxima of groups of
scores. Most steps need no more: where no maximum of a query exceeds the worst
score of its running top-k, its scores are skipped. The temporaries are those
of one step, however many rows there are.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, MODEL_AXIS

# The k best of a step lie in the k groups of consecutive rows with the
# largest maxima, and a maximum vectorizes where a top-k does not.
GROUP = 32
# On CPUs, the queries that a step improves are processed in batches of this
# size. It is small because after the first steps a step improves few.
_QUERIES_PER_BATCH = 64
# Scores and rows of a step, at most. On CPUs the scores stay in the cache until
# their maxima are taken; on other platforms a step should be long compared to
# its launches, which on GPUs are many.
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
    rows_per_step: Rows that are scored at once, at most those of a device.
    platform: Platform of the devices, as in `jax.Device.platform`.
  """

  k: int
  rows_per_step: int
  platform: str

  @property
  def rows_first(self) -> bool:
    """Whether scores are laid out by rows, then queries.

    On TPUs a maximum over rows then needs no copy. CPUs read along the rows of
    a query.
    """
    return self.platform == "tpu"


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

  Queries and rows are those of all devices together.
  """
  scores = _MAX_SCORES[platform] // max(1, num_queries)
  fits = 1 << (max(1, scores).bit_length() - 1)
  wanted = 1 << (_ROWS_PER_K * k - 1).bit_length()
  rows = max(min(max(fits, _MIN_ROWS), _MAX_ROWS[platform]), wanted)
  return SearchPlan(
    k, min(rows_per_step or rows, num_rows // devices), platform
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

  The vectors are sharded over all axes of the mesh, and the queries and the
  result as a batch is. The rows from `num_blocks` on are padding; `num_blocks`
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
    found = _local_top_k(everyone, vectors, num_blocks, first_row, plan)
    scores, rows = (_own_queries(part) for part in found)
    # Devices come in row order, so the lower row still wins a tie.
    return _best_of(scores, rows, plan.k)

  by_group = PartitionSpec(BATCH_AXES)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(by_group, PartitionSpec(MESH_AXES), PartitionSpec()),
    out_specs=by_group,
    # The running top-k starts from constants, which the check would require to
    # be marked as varying over the axes.
    check_vma=False,
  )(queries, vectors, num_blocks)


def _own_queries(found: Shaped[Array, "all_b k"]) -> Shaped[Array, "b c"]:
  """Exchanges each device's results, so that each has all for its queries."""
  k = found.shape[-1]
  groups = lax.axis_size(BATCH_AXES)
  found = found.reshape(groups, -1, k)
  found = lax.all_to_all(found, BATCH_AXES, split_axis=0, concat_axis=0)
  found = found.transpose(1, 0, 2)
  if lax.axis_size(MODEL_AXIS) > 1:
    # The devices of a group have the same queries, and each has got the results
    # of other devices. `model` is the inner axis: next to each group's result
    # stand those of the other devices in it, in row order.
    found = lax.all_gather(found, MODEL_AXIS, axis=2)
  return found.reshape(found.shape[0], -1)


def _best_of(
  scores: Float[Array, "b c"], rows: Int[Array, "b c"], k: int
) -> Best:
  """Returns the k best; of equal scores, those that come first."""
  scores, places = lax.top_k(scores, k)
  return scores, jnp.take_along_axis(rows, places, axis=1)


class _Scored(NamedTuple):
  """A step's scores, by groups of consecutive rows."""

  # Padding has scores, too. With `rows_first` they are [g, s, b].
  scores: Float[Array, "x y z"]
  # The largest score among each group's new rows.
  maxima: Float[Array, "b g"]
  # Whether a row is neither padding nor part of an earlier step.
  is_new: Bool[Array, "g s"]
  # Row numbers over all devices.
  rows: Int[Array, "g s"]


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
  by_groups = size > 2 * plan.k * GROUP and size % GROUP == 0
  groups = size // GROUP if by_groups else size

  def step(i: Int[Array, ""], best: Best) -> Best:
    # The last step starts early enough to be whole, and leaves out the rows
    # that the step before it has scored.
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
    if plan.rows_first:
      scores = scores.reshape(groups, size // groups, -1)
      new = is_new.reshape(groups, -1, 1)
      maxima = jnp.where(new, scores, -jnp.inf).max(axis=1).T
    else:
      maxima = jnp.where(is_new[None], scores, -jnp.inf)
      maxima = maxima.reshape(-1, groups, size // groups).max(axis=-1)
      scores = scores.reshape(-1, groups, size // groups)
    scored = _Scored(
      scores=scores,
      maxima=maxima,
      is_new=is_new.reshape(groups, -1),
      rows=(first_row + rows).reshape(groups, -1),
    )
    # Skipping saves more than it costs on CPUs alone.
    if plan.platform == "cpu":
      return _improve_some(best, scored, plan)
    return _improve(best, scored, None, plan)

  shape = (len(queries), plan.k)
  best = jnp.full(shape, -jnp.inf), jnp.full(shape, -1)
  return lax.fori_loop(0, -(-real // size), step, best)


def _improve_some(best: Best, scored: _Scored, plan: SearchPlan) -> Best:
  """Merges a step's rows into the top-k of the queries that they improve."""
  batch_size = min(len(scored.maxima), _QUERIES_PER_BATCH)
  # A NaN compares as not less or equal, so its query is not skipped.
  waits = ~(scored.maxima.max(axis=1) <= best[0][:, -1])

  def improve(state: tuple[Bool[Array, " b"], Best]) -> tuple[Array, Best]:
    waits, best = state
    do_wait, chosen = lax.top_k(waits.astype(jnp.float32), batch_size)
    old = best[0][chosen], best[1][chosen]
    new = _improve(old, scored, chosen, plan)
    # Queries that are done already fill up the last batch, unchanged.
    scores, rows = (
      part.at[chosen].set(
        jnp.where(do_wait[:, None] > 0, after, before), unique_indices=True
      )
      for part, before, after in zip(best, old, new, strict=True)
    )
    return waits.at[chosen].set(False, unique_indices=True), (scores, rows)

  return lax.while_loop(lambda state: state[0].any(), improve, (waits, best))[1]


def _improve(
  best: Best, scored: _Scored, chosen: Int[Array, " q"] | None, plan: SearchPlan
) -> Best:
  """Merges a step's rows into the top-k of chosen queries; None is all."""
  # Earlier results come first because their rows are lower.
  found = _candidates(scored, chosen, plan)
  scores, rows = (
    jnp.concatenate(parts, axis=1) for parts in zip(best, found, strict=True)
  )
  return _best_of(scores, rows, plan.k)


def _candidates(
  scored: _Scored, chosen: Int[Array, " q"] | None, plan: SearchPlan
) -> Best:
  """Returns rows of a step that hold the k best of the chosen queries."""
  # Gathering all queries would copy the array.
  maxima = scored.maxima if chosen is None else scored.maxima[chosen]
  _, group = scored.rows.shape
  if group == 1:
    return maxima, jnp.broadcast_to(scored.rows.T, maxima.shape)
  # At most k − 1 groups hold a row that precedes a given member of the top k,
  # since each such group's maximum precedes it too. So the k groups with the
  # largest maxima (ties to the lower group) hold the whole top k.
  _, best = lax.top_k(maxima, plan.k)
  best = jnp.sort(best, axis=-1)
  queries = jnp.arange(len(maxima)) if chosen is None else chosen
  if plan.rows_first:
    inside = scored.scores[best, :, queries[:, None]]
  else:
    inside = scored.scores[queries[:, None], best]
  inside = jnp.where(scored.is_new[best], inside, -jnp.inf)
  shape = (len(maxima), plan.k * group)
  return inside.reshape(shape), scored.rows[best].reshape(shape)
