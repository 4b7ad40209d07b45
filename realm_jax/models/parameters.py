"""Parameters of a model, and the logical names of their axes."""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import AxisMetadata
from flax.traverse_util import flatten_dict, unflatten_dict
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


def axis_metadata(boxed: PyTree) -> dict[str, Any]:
  """Returns the logical axis names of boxed parameters, as t5x reads them.

  This is flax's collection `params_axes`: a tree like that of the parameters,
  with names that end in `_axes`.
  """
  names = flatten_dict(nn.get_partition_spec(boxed))
  return unflatten_dict(
    {
      (*path[:-1], f"{path[-1]}_axes"): AxisMetadata(names=tuple(spec))
      for path, spec in names.items()
    }
  )
