"""Sharding of arrays over the mesh: by logical axes, and of batches by rows."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flax.core import spmd
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, Shaped

from realm_jax.errors import RealmError
from realm_jax.partitioning.mesh import (
  BATCH_AXES,
  FSDP_AXIS,
  MESH_AXES,
  MODEL_AXIS,
)

T = TypeVar("T")

# Settings for the sizes of the mesh's axes.
_SETTINGS = {FSDP_AXIS: "FSDP", MODEL_AXIS: "MODEL_PARALLELISM"}

# A logical axis, and the mesh axis or axes over which it is sharded. If an axis
# has several rules, the first one counts whose mesh axes are not used by
# another axis of the array.
AxisRule = tuple[str, str | tuple[str, ...] | None]
AxisRules = tuple[AxisRule, ...]

LOGICAL_AXIS_RULES: AxisRules = (
  # Parameters and the optimizer's moments. Every matrix has an axis `embed`.
  ("vocab", MODEL_AXIS),
  ("heads", MODEL_AXIS),
  ("mlp", MODEL_AXIS),
  ("embed", FSDP_AXIS),
  # Layers that a scan applies one after the other.
  ("layers", None),
  ("embed_out", None),
  ("projection", None),
  ("span", None),
  ("label", None),
  ("position", None),
  ("type", None),
  # Vectors of the hidden size: biases, and the parameters of LayerNorm. They
  # are too small to be worth an all-gather.
  ("norm", None),
  # Activations. A matrix may be sharded over `fsdp` along a dimension that they
  # are not, so that the compiler gathers the matrix.
  ("activation_batch", BATCH_AXES),
  ("activation_length", None),
  ("activation_embed", None),
  ("activation_heads", MODEL_AXIS),
  ("activation_kv", None),
  ("activation_mlp", MODEL_AXIS),
)


def with_defaults(
  overrides: Sequence[tuple[str, str | Sequence[str] | None]],
) -> AxisRules:
  """Returns the rules of a run: its own, which come before the defaults.

  Raises:
    ValueError: A rule has an unknown logical axis or mesh axis, or a mesh axis
      twice.
  """
  known = [axis for axis, _ in LOGICAL_AXIS_RULES]
  rules: list[AxisRule] = []
  for axis, target in overrides:
    named = mesh_axes_of(target)
    is_valid = len(set(named) & set(MESH_AXES)) == len(named)
    if axis not in known or not is_valid:
      raise RealmError(
        f"the rule {(axis, target)} must be of a logical axis, one of "
        f"{', '.join(known)}, and of axes of the mesh, each once: "
        f"{', '.join(MESH_AXES)}, a list of these, or None"
      )
    rules.append((axis, target if isinstance(target, str) else named or None))
  return (*rules, *LOGICAL_AXIS_RULES)


def mesh_axes_of(part: str | Sequence[str] | None) -> tuple[str, ...]:
  """Returns the mesh axes of a dimension, from a rule or a partition spec."""
  if part is None:
    return ()
  return (part,) if isinstance(part, str) else tuple(part)


def require_divisible(
  what: str,
  shape: Sequence[int],
  axes: Sequence[str | None],
  placed: NamedSharding,
) -> None:
  """Checks that the mesh divides the dimensions of an array evenly.

  `what` describes the array, and `axes` are its logical axes.

  Raises:
    ValueError: A dimension is not divisible. The message has the settings to
      change.
  """
  for size, axis, part in zip(shape, axes, placed.spec, strict=False):
    mesh_axes = mesh_axes_of(part)
    parts = math.prod(placed.mesh.shape[name] for name in mesh_axes)
    if size % parts:
      settings = " and ".join(_SETTINGS.get(name, name) for name in mesh_axes)
      raise RealmError(
        f"{what} has {size} along {axis!r}, which the {parts} devices of "
        f"{' × '.join(mesh_axes)} cannot share evenly; change {settings}, or "
        f"do not divide it: --gin.AXIS_RULES='[(\"{axis}\", None)]'"
      )


# `functools.partial`, but equal arguments, which must be hashable, return the
# same function. So the next run, evaluation or corpus version with an equal
# module reuses the programs that `jax.jit` has compiled.
shared_partial = functools.lru_cache(maxsize=64)(functools.partial)


@functools.lru_cache(maxsize=64)
def under(
  axis_rules: AxisRules, function: Callable[..., T], *first: Any, **bound: Any
) -> Callable[..., T]:
  """Returns a function that runs under these rules for logical axes.

  `jax.jit` caches programs by function and current mesh, but not by rules, so
  other rules return another function. So do other bound arguments, as in
  `shared_partial`.
  """

  @functools.wraps(function)
  def call(*arguments: Any, **named: Any) -> T:
    with spmd.logical_axis_rules(axis_rules):
      return function(*first, *arguments, **bound, **named)

  return call


def jit_on_mesh(
  function: Callable[..., T], *first: Any, mesh: Mesh, **options: Any
) -> Callable[..., T]:
  """Returns a compiled function whose axes follow `LOGICAL_AXIS_RULES`.

  Equal `first` arguments, which must be hashable, share compiled programs.
  `options` are options of `jax.jit`.
  """
  program = jax.jit(under(LOGICAL_AXIS_RULES, function, *first), **options)

  def call(*arguments: Any, **named: Any) -> T:
    with jax.set_mesh(mesh):
      return program(*arguments, **named)

  return call


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch's arrays, by rows."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a replicated array."""
  return NamedSharding(mesh, PartitionSpec())


def abstract_replicated(tree: T, mesh: Mesh) -> T:
  """Returns abstract replicated arrays like a tree's."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
    tree,
  )


def replicate(tree: T, mesh: Mesh) -> T:
  """Returns global replicated arrays, from a tree that every process has.

  Unlike `jax.device_put`, this does not communicate, so any thread may call it
  at any time.
  """
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(
      replicated(mesh), x, x.shape
    ),
    tree,
  )


def to_devices(batch: T, mesh: Mesh) -> T:
  """Returns global arrays, from a tree of this process's rows on the host.

  The rows of each group are consecutive, in the order of `RowGroups.local`.
  This does not communicate.
  """
  return jax.make_array_from_process_local_data(batch_sharding(mesh), batch)


def local_rows(
  array: Shaped[jax.Array, "n *s"],
) -> Shaped[np.ndarray, "local *s"]:
  """Returns this process's rows of an array that is sharded by rows."""
  by_start = {
    shard.index[0].start or 0: shard.data for shard in array.addressable_shards
  }
  return np.concatenate(
    [np.asarray(by_start[start]) for start in sorted(by_start)]
  )


class RowGroups(NamedTuple):
  """The equal groups into which the rows of a global batch are divided.

  Attributes:
    local: Groups on the devices of this process, in rising order. If the model
      axis spans processes, several of them have the same groups.
  """

  count: int
  local: tuple[int, ...]

  def local_rows(
    self, num_rows: int, *, parts: int = 1
  ) -> Int[np.ndarray, " local"]:
    """Returns the indices of this process's rows, in rising order.

    Raises:
      ValueError: The groups, each split into `parts`, do not divide the rows
        evenly.
    """
    groups = self.count * parts
    if num_rows % groups:
      fitting = num_rows // groups * groups
      raise RealmError(
        f"batch_size={num_rows} is not a multiple of the {groups} groups that "
        "share it (data × fsdp × microbatches); give a new run "
        f"BATCH_SIZE={fitting or groups} or {fitting + groups}, and continue a "
        "run, whose BATCH_SIZE stays, on a number of devices that divides it"
      )
    return np.arange(num_rows).reshape(self.count, -1)[list(self.local)].ravel()


@functools.lru_cache
def row_groups(mesh: Mesh) -> RowGroups:
  """Returns the groups of rows on the mesh's devices."""
  count = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  indices = batch_sharding(mesh).addressable_devices_indices_map((count,))
  starts = {index[0].indices(count)[0] for index in indices.values() if index}
  return RowGroups(count, tuple(sorted(starts)))
