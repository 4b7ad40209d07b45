"""The state that a step reads and writes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Int

from realm_jax.models.parameters import Params
from realm_jax.partitioning import rules


class TrainState(NamedTuple):
  """Parameters, optimizer state and step count of a run.

  `create_state` also returns a `TrainState` of shardings.

  Attributes:
    step: Number of steps done.
    params: Parameters by component, `retriever` and `reader`.
    optimizer: State of the optimizer.
  """

  step: Int[Array, ""]
  params: Params
  optimizer: optax.OptState


def create_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  seed: int,
  mesh: Mesh,
) -> tuple[TrainState, TrainState]:
  """Initializes a state, every array on its own devices.

  Args:
    init: Function from a random key to the parameters by component, in flax's
      boxes.
    optimizer: Optimizer of the run.
    seed: Seed of the initial values.
    mesh: Mesh of the run.

  Returns:
    The state, and a state that has a sharding in place of each array.

  Raises:
    ValueError: The mesh does not divide a parameter.
  """

  def boxed(key: jax.Array) -> TrainState:
    params = init(key)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      optimizer=optimizer.init(params),
    )

  key = jax.random.key(seed)
  shapes = jax.eval_shape(boxed, key)
  shardings = rules.shardings(shapes, mesh)
  _require_divisible(nn.unbox(shapes).params, shardings.params, mesh)
  # The same function again: it is traced once for both. A sharding is a pytree
  # prefix of the box that stands in its place.
  make = jax.jit(boxed, out_shardings=shardings)
  return nn.unbox(make(key)), shardings


def _require_divisible(params: Params, shardings: Params, mesh: Mesh) -> None:
  """Checks that the mesh divides every parameter.

  Raises:
    ValueError: It does not divide one, such as the embeddings of an odd number
      of wordpieces over two devices.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  for (path, leaf), sharding in zip(
    leaves, jax.tree.leaves(shardings), strict=True
  ):
    for size, axis in zip(leaf.shape, sharding.spec, strict=False):
      if axis is not None and size % mesh.shape[axis]:
        raise ValueError(
          f"the parameter {jax.tree_util.keystr(path)} of shape {leaf.shape} "
          f"cannot be divided over the {mesh.shape[axis]} devices of the "
          f"{axis} axis; choose another MODEL_PARALLELISM, or a vocabulary, "
          "heads and layers that it divides"
        )
