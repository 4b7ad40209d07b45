"""One set of rules from logical axis names to axes of the mesh."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
  """Gives the axis names of activations their meaning while tracing."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXIS_RULES):
    yield


def shardings(boxed: Any, mesh: Mesh) -> Any:
  """Shardings of a tree whose leaves carry logical axis names.

  Args:
    boxed: arrays or abstract arrays, in flax's `LogicallyPartitioned` boxes
      where they have names; others are replicated.
    mesh: the mesh.
  """
  return nn.logical_to_mesh_sharding(
    nn.get_partition_spec(boxed), mesh, LOGICAL_AXIS_RULES
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows over the data axis: every array of a batch."""
  return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
  """The same on every device."""
  return NamedSharding(mesh, PartitionSpec())


def to_devices(batch: T, mesh: Mesh) -> T:
  """Returns global arrays made of each process's own rows.

  Args:
    batch: Tree of arrays on the host, with this process's rows in front.
    mesh: Mesh of the run.
  """
  place = functools.partial(
    jax.make_array_from_process_local_data, batch_sharding(mesh)
  )
  return jax.tree.map(place, batch)


def local_rows(array: jax.Array) -> np.ndarray:
  """This process's rows of an array whose rows lie over the data axis."""
  by_start = {
    shard.index[0].start or 0: shard.data for shard in array.addressable_shards
  }
  return np.concatenate(
    [np.asarray(by_start[start]) for start in sorted(by_start)]
  )


def own_rows(rows: np.ndarray, mesh: Mesh) -> np.ndarray:
  """This process's rows of a batch that every process has in full."""
  return local_rows(
    jax.make_array_from_callback(
      rows.shape, batch_sharding(mesh), lambda index: rows[index]
    )
  )
