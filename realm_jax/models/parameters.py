"""Parameters of a model, and the logical names of their axes."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from realm_jax.errors import RealmError

# A flax parameter tree: arrays, or trees of the same kind, by name.
Params = dict[str, Any]


def parameter_shardings(
  boxed: PyTree,
  mesh: Mesh,
  axis_rules: Sequence[tuple[str, str | tuple[str, ...] | None]],
) -> PyTree[NamedSharding]:
  """Returns the shardings of a tree of arrays or abstract arrays.

  Arrays in Flax's `LogicallyPartitioned` boxes are sharded by their logical
  axes; others are replicated.
  """
  return nn.logical_to_mesh_sharding(
    nn.get_partition_spec(boxed), mesh, axis_rules
  )


def subtree(params: Params, name: str) -> Params:
  """Returns the parameters of a component, or of a tower of it.

  Args:
    params: Parameters by component.
    name: Name, such as `reader` or `retriever/query_tower`.

  Raises:
    RealmError: There are no parameters with this name.
  """
  tree = params
  for part in name.split("/"):
    if part not in tree:
      advice = ""
      if part.endswith("_tower") and "tower" in tree:
        advice = (
          "; its towers are one: bind BertRetriever.shared_towers = False"
        )
      raise RealmError(
        f"no parameters are called {name!r}, only {sorted(tree)}{advice}"
      )
    tree = tree[part]
  return tree


def is_within(path: Sequence[Any], names: Collection[str]) -> bool:
  """Returns whether a path of keys leads into one of the named subtrees."""
  place = jax.tree_util.keystr(tuple(path), simple=True, separator="/")
  return any(f"{place}/".startswith(f"{name}/") for name in names)
