"""The compiled program of exact search: a running top-k over steps of rows.

A step multiplies all queries with some rows and takes the maxima of groups of
scores, which is all that most steps need: where no maximum of a query beats
the worst of what it has, its scores are not looked at. The temporaries are a
step's, however many rows there are.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from realm_jax.partitioning.mesh import DATA_AXIS

# The k best of a step lie in the k groups of consecutive rows with the
# largest maxima, and a maximum vectorises where a top-k does not.
GROUP = 32
# On CPUs, the queries that a step improves are looked after so many at once:
# few, for after the first steps a step improves few.
_QUERIES_AT_ONCE = 64
# Scores of a step. On CPUs they stay in the cache until their maxima are
# taken; elsewhere a step is long against what it takes to start one.
_SCORES_ON_CPUS = 1 << 21
_SCORES_ELSEWHERE = 1 << 25
_MIN_ROWS, _MAX_ROWS = 2048, 1 << 16
# Merging k at every step costs less in fewer steps.
_ROWS_PER_K = 8

Best = tuple[Float[Array, "b k"], Int[Array, "b k"]]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the program is compiled for, besides its shapes.

  Attributes:
    k: how many rows for each query.
    rows_per_step: rows that are scored at once, of one device.
    recall_target: of `lax.approx_max_k`; None finds exactly the best.
    skips: whether to leave alone the queries that a step does not improve,
      which elsewhere than on CPUs would cost more than it saves.
  """

  k: int
  rows_per_step: int
  recall_target: float | None
  skips: bool


def make_plan(
  k: int,
  *,
  num_queries: int,
  num_rows: int,
  rows_per_step: int | None,
  recall_target: float | None,
  platform: str,
) -> Plan:
  """Chooses the rows of a step where nobody else has.

  Args:
    k: how many rows for each query.
    num_queries: of all devices.
    num_rows: of one device.
    rows_per_step: None chooses by the number of queries, k and the platform.
    recall_target: as in `Plan`.
    platform: of the devices, such as `cpu`.
  """
  if rows_per_step is None:
    scores = _SCORES_ON_CPUS if platform == "cpu" else _SCORES_ELSEWHERE
    fits = 1 << (max(1, scores // max(1, num_queries)).bit_length() - 1)
    wanted = 1 << (_ROWS_PER_K * k - 1).bit_length()
    rows_per_step = max(min(max(fits, _MIN_ROWS), _MAX_ROWS), wanted)
  return Plan(
    k=k,
    rows_per_step=min(rows_per_step, num_rows),
    recall_target=recall_target,
    skips=platform == "cpu",
  )


@functools.partial(jax.jit, static_argnames=("plan", "mesh"))
def search(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  *,
  plan: Plan,
  mesh: Mesh | None,
) -> Best:
  """The k best rows of each query, best first; of equals, the lower row.

  Args:
    queries: with a mesh, over its data axis, which divides b.
    vectors: with a mesh, over its data axis; rows from num_blocks on pad.
    num_blocks: at least k.
    plan: from `make_plan`.
    mesh: None is for one device.
  """
  local = functools.partial(_local_top_k, plan=plan, all_rows=len(vectors))
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
    return _best_of(scores, rows, plan.k)

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


def _best_of(
  scores: Float[Array, "b c"], rows: Int[Array, "b c"], k: int
) -> Best:
  """The k best; of equals, those that come first."""
  scores, places = lax.top_k(scores, k)
  return scores, jnp.take_along_axis(rows, places, axis=1)


class _Scored(NamedTuple):
  """A step's scores, by groups of consecutive rows.

  Attributes:
    scores: of all queries, those of pads among them.
    maxima: of each group's new rows.
    is_new: rows that are no pads, and in no step before.
    rows: over all devices.
  """

  scores: Float[Array, "b g s"]
  maxima: Float[Array, "b g"]
  is_new: Bool[Array, "g s"]
  rows: Int[Array, "g s"]


def _local_top_k(
  queries: Float[Array, "b d"],
  vectors: Float[Array, "n d"],
  num_blocks: Int[Array, ""],
  *,
  first_row: Any,
  all_rows: int,
  plan: Plan,
) -> Best:
  """A running top-k over steps of rows; a pad is never found.

  Args:
    queries: all of them.
    vectors: this device's.
    num_blocks: of all devices.
    first_row: of this device's vectors.
    all_rows: of all devices, pads among them.
    plan: of the program.
  """
  queries = queries.astype(vectors.dtype)
  real = jnp.clip(num_blocks - first_row, 0, len(vectors))
  size = plan.rows_per_step
  by_groups = plan.recall_target is None and size > 2 * plan.k * GROUP
  groups = size // GROUP if by_groups and size % GROUP == 0 else size

  def step(i, best):
    # The last step starts early enough to be whole, and leaves out the rows
    # that the step before it has seen.
    start = jnp.minimum(i * size, len(vectors) - size)
    part = lax.dynamic_slice_in_dim(vectors, start, size)
    scores = lax.dot_general(
      queries,
      part,
      (((1,), (1,)), ((), ())),
      precision=lax.Precision.HIGHEST,
      preferred_element_type=jnp.float32,
    )
    rows = start + jnp.arange(size)
    is_new = (rows >= i * size) & (rows < real)
    maxima = jnp.where(is_new[None], scores, -jnp.inf)
    scored = _Scored(
      scores=scores.reshape(-1, groups, size // groups),
      maxima=maxima.reshape(-1, groups, size // groups).max(axis=-1),
      is_new=is_new.reshape(groups, -1),
      rows=(first_row + rows).reshape(groups, -1),
    )
    if plan.skips:
      return _improve_some(best, scored, plan, all_rows)
    return _improve(best, scored, None, plan, all_rows)

  shape = (len(queries), plan.k)
  best = jnp.full(shape, -jnp.inf), jnp.full(shape, -1)
  return lax.fori_loop(0, -(-real // size), step, best)


def _improve_some(
  best: Best, scored: _Scored, plan: Plan, all_rows: int
) -> Best:
  """Merges a step's rows into the best of the queries that they improve."""
  at_once = min(len(scored.scores), _QUERIES_AT_ONCE)
  # A NaN is no less than anything, and is let in.
  waits = ~(scored.maxima.max(axis=1) <= best[0][:, -1])

  def improve(state):
    waits, best = state
    do_wait, chosen = lax.top_k(waits.astype(jnp.float32), at_once)
    old = tuple(part[chosen] for part in best)
    new = _improve(old, scored, chosen, plan, all_rows)
    # Those that have had their turn fill up the last lot.
    best = tuple(
      part.at[chosen].set(
        jnp.where(do_wait[:, None] > 0, after, before), unique_indices=True
      )
      for part, before, after in zip(best, old, new, strict=True)
    )
    return waits.at[chosen].set(False, unique_indices=True), best

  return lax.while_loop(lambda state: state[0].any(), improve, (waits, best))[1]


def _improve(
  best: Best,
  scored: _Scored,
  chosen: Int[Array, " q"] | None,
  plan: Plan,
  all_rows: int,
) -> Best:
  """Merges a step's rows into the best of the chosen queries, None for all."""
  # What was found before comes first: its rows are lower.
  found = _candidates(scored, chosen, plan, all_rows)
  scores, rows = (
    jnp.concatenate(parts, axis=1) for parts in zip(best, found, strict=True)
  )
  return _best_of(scores, rows, plan.k)


def _candidates(
  scored: _Scored, chosen: Int[Array, " q"] | None, plan: Plan, all_rows: int
) -> Best:
  """Rows of a step, the k best of the chosen queries among them, in order."""
  # A gather of all would be a copy.
  maxima = scored.maxima if chosen is None else scored.maxima[chosen]
  groups, group = scored.rows.shape
  if plan.recall_target is not None:
    # Groups of one row: their maxima are the scores.
    scores, places = lax.approx_max_k(
      maxima,
      min(plan.k, groups),
      recall_target=plan.recall_target,
      reduction_input_size_override=all_rows,
    )
    return scores, scored.rows[:, 0][places]
  if group == 1:
    return maxima, jnp.broadcast_to(scored.rows.T, maxima.shape)
  # At most k − 1 groups can hold anything that comes before a member of the
  # top k: each such group's own maximum comes before it too. So the k groups
  # with the largest maxima (of equals, the lower) hold the whole top k.
  _, best = lax.top_k(maxima, plan.k)
  best = jnp.sort(best, axis=-1)
  queries = jnp.arange(len(maxima)) if chosen is None else chosen
  inside = scored.scores[queries[:, None], best]
  inside = jnp.where(scored.is_new[best], inside, -jnp.inf)
  shape = (len(maxima), plan.k * group)
  return inside.reshape(shape), scored.rows[best].reshape(shape)
