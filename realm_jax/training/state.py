"""The state that a step reads and writes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from realm_jax.models.parameters import Params, parameter_shardings
from realm_jax.partitioning import sharding


class TrainState(NamedTuple):
  """What the steps of a run read and write.

  Attributes:
    step: Number of steps done.
    params: Parameters by component.
    optimizer: State of the optimizer.
    index: Vectors of all blocks, of a run that keeps its own index
      (`rolling_index.DatedVectors`).
  """

  step: Int[Array, ""]
  params: Params
  optimizer: optax.OptState
  index: PyTree = None


def create_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  seed: int,
  mesh: Mesh,
  axis_rules: sharding.AxisRules = sharding.LOGICAL_AXIS_RULES,
) -> TrainState:
  """Initializes a state, every array on its own devices.

  `init` makes parameters by component, in flax's boxes, from a random key.

  Raises:
    ValueError: The mesh does not divide a parameter.
  """
  boxed = sharding.shared_partial(_boxed_state, init, optimizer)
  shardings = _state_shardings(boxed, mesh, axis_rules)[1]
  # The same function again: it is traced once for both. A sharding is a pytree
  # prefix of the box that stands in its place.
  make = jax.jit(boxed, out_shardings=shardings)
  return meta.unbox(make(jax.random.key(seed)))


def abstract_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  mesh: Mesh,
  axis_rules: sharding.AxisRules = sharding.LOGICAL_AXIS_RULES,
) -> TrainState:
  """Returns the abstract arrays of the state that `create_state` makes.

  Raises:
    ValueError: The mesh does not divide a parameter.
  """
  boxed = sharding.shared_partial(_boxed_state, init, optimizer)
  shapes, shardings = _state_shardings(boxed, mesh, axis_rules)
  return jax.tree.map(
    lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
    meta.unbox(shapes),
    shardings,
  )


def _state_shardings(
  boxed: Callable[[jax.Array], TrainState],
  mesh: Mesh,
  axis_rules: sharding.AxisRules,
) -> tuple[TrainState, TrainState]:
  """Returns a state's shapes, in flax's boxes, and its shardings."""
  shapes = jax.eval_shape(boxed, jax.random.key(0))
  shardings = parameter_shardings(shapes, mesh, axis_rules)
  _require_divisible(shapes.params, shardings.params)
  return shapes, shardings


def _boxed_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  params = init(key)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def _require_divisible(params: Params, shardings: Params) -> None:
  """Refuses, for example, an odd number of wordpieces over two devices.

  The parameters are in flax's boxes, which have the names of their axes.
  """
  leaves = jax.tree_util.tree_leaves_with_path(
    params, is_leaf=meta.is_axis_metadata
  )
  for (path, leaf), placed in zip(
    leaves, jax.tree.leaves(shardings), strict=True
  ):
    shape = meta.unbox(leaf).shape
    for axis, size, part in zip(
      getattr(leaf, "names", ()), shape, placed.spec, strict=False
    ):
      sharding.require_divisible(
        f"the parameter {jax.tree_util.keystr(path)} of shape {shape}, with "
        f"{size} along {axis!r},",
        size,
        axis=axis,
        part=part,
        mesh=placed.mesh,
      )
