"""Rules from logical axis names to axes of the mesh, and rows of a batch."""

import contextlib
import functools
from collections.abc import Iterator
from typing import TypeVar

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree, Shaped

from realm_jax.partitioning.mesh import DATA_AXIS, MODEL_AXIS

T = TypeVar("T")

LOGICAL_AXIS_RULES = (
  ("batch", DATA_AXIS),
  ("vocab", MODEL_AXIS),
  ("heads", MODEL_AXIS),
  ("mlp", MODEL_AXIS),
  ("embed", None),
  ("embed_out", None),
  ("projection", None),
  ("span", None),
  ("position", None),
  ("type", None),
  ("length", None),
)


@contextlib.contextmanager
def in_effect(mesh: Mesh) -> Iterator[None]:
  """Maps logical axis names to axes of the mesh while a program is traced."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXIS_RULES):
    yield


def shardings(boxed: PyTree, mesh: Mesh) -> PyTree[NamedSharding]:
  """Returns the shardings of a tree of arrays or abstract arrays.

  Those in flax's `LogicallyPartitioned` boxes have logical axis names; the
  others are replicated.
  """
  return nn.logical_to_mesh_sharding(
    nn.get_partition_spec(boxed), mesh, LOGICAL_AXIS_RULES
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch's arrays: rows over the data axis."""
  return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of an array that every device has in full."""
  return NamedSharding(mesh, PartitionSpec())


def abstract_replicated(tree: T, mesh: Mesh) -> T:
  """Returns abstract arrays like a tree's, which every device has in full."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
    tree,
  )


def to_devices(batch: T, mesh: Mesh) -> T:
  """Returns global arrays, from a tree of each process's rows on the host."""
  place = functools.partial(
    jax.make_array_from_process_local_data, batch_sharding(mesh)
  )
  return jax.tree.map(place, batch)


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


def own_rows(
  rows: Shaped[np.ndarray, "n *s"], mesh: Mesh
) -> Shaped[np.ndarray, "local *s"]:
  """Returns this process's rows of an array that every process has in full."""
  return local_rows(
    jax.make_array_from_callback(
      rows.shape, batch_sharding(mesh), lambda index: rows[index]
    )
  )
