"""The state of training: parameters, optimizer, and the index of the run."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from realm_jax.models.components import Components
from realm_jax.models.lora import split
from realm_jax.models.parameters import Params, parameter_shardings
from realm_jax.partitioning import sharding

# Metrics of a step by name, on the devices.
Metrics = dict[str, jax.Array]


class TrainState(NamedTuple):
  """Training state; a checkpoint stores it.

  Attributes:
    step: Number of steps that have been taken.
    params: Parameters by component.
    optimizer: Optimizer state of the trained parameters.
    index: `search_in_step.RollingIndexState`, if the run keeps a rolling index.
  """

  step: Int[Array, ""]
  params: Params
  optimizer: optax.OptState
  index: PyTree = None


def create_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  components: Components,
  *,
  seed: int | None,
  mesh: Mesh,
  axis_rules: sharding.AxisRules = sharding.LOGICAL_AXIS_RULES,
) -> TrainState:
  """Initializes a state with every array sharded over the mesh.

  `init` returns parameters in Flax's boxes of logical axes. Without a `seed`,
  the arrays are abstract.

  Raises:
    ValueError: The mesh does not divide a parameter, or LoRA is configured for
      a layer that the component does not have.
  """
  # Equal arguments return the same function, so that jax traces it once.
  boxed = sharding.shared_partial(_boxed_state, init, optimizer, components)
  shapes = jax.eval_shape(boxed, jax.random.key(0))
  shardings = parameter_shardings(shapes, mesh, axis_rules)
  jax.tree_util.tree_map_with_path(
    lambda path, box, placed: sharding.require_divisible(
      f"the parameter {jax.tree_util.keystr(path)}",
      meta.unbox(box).shape,
      getattr(box, "names", ()),
      placed,
    ),
    shapes.params,
    shardings.params,
    is_leaf=meta.is_axis_metadata,
  )
  if seed is None:
    return jax.tree.map(
      lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
      meta.unbox(shapes),
      shardings,
    )
  # Each sharding is a pytree prefix of the box at the same path.
  make = jax.jit(boxed, out_shardings=shardings)
  return meta.unbox(make(jax.random.key(seed)))


def _boxed_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  components: Components,
  key: jax.Array,
) -> TrainState:
  params = init(key)
  trained, _ = split(components, params)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(trained))
