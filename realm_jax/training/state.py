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
  like = abstract_state(init, optimizer, mesh=mesh, axis_rules=axis_rules)
  # The same function again: it is traced once for both. A sharding is a pytree
  # prefix of the box that stands in its place.
  boxed = sharding.shared_partial(_boxed_state, init, optimizer)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
  return meta.unbox(
    jax.jit(boxed, out_shardings=shardings)(jax.random.key(seed))
  )


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
  shapes = jax.eval_shape(boxed, jax.random.key(0))
  shardings = parameter_shardings(shapes, mesh, axis_rules)
  boxes = jax.tree_util.tree_leaves_with_path(
    shapes.params, is_leaf=meta.is_axis_metadata
  )
  for (path, box), placed in zip(
    boxes, jax.tree.leaves(shardings.params), strict=True
  ):
    sharding.require_divisible(
      f"the parameter {jax.tree_util.keystr(path)}",
      meta.unbox(box).shape,
      getattr(box, "names", ()),
      placed,
    )
  return jax.tree.map(
    lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
    meta.unbox(shapes),
    shardings,
  )


def _boxed_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  params = init(key)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
