"""Parameters of a model, and the logical names of their axes."""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

# A flax parameter tree: arrays, or trees of the same kind, by name.
Params = dict[str, Any]


def parameter_shardings(
  boxed: PyTree,
  mesh: Mesh,
  axis_rules: Sequence[tuple[str, str | tuple[str, ...] | None]],
) -> PyTree[NamedSharding]:
  """Returns the shardings of a tree of arrays or abstract arrays.

  Those in flax's `LogicallyPartitioned` boxes have logical axis names; the
  others are replicated.
  """
  return nn.logical_to_mesh_sharding(
    nn.get_partition_spec(boxed), mesh, axis_rules
  )
