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
  """Number of steps done, parameters by component, and optimizer state."""

  step: Int[Array, ""]
  params: Params
  optimizer: optax.OptState


def create_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  seed: int,
  mesh: Mesh,
) -> TrainState:
  """Initializes a state, every array on its own devices.

  `init` makes parameters by component, in flax's boxes, from a random key.

  Raises:
    ValueError: The mesh does not divide a parameter.
  """

  def boxed(key: jax.Array) -> TrainState:
    params = init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  key = jax.random.key(seed)
  shapes = jax.eval_shape(boxed, key)
  shardings = rules.shardings(shapes, mesh)
  _require_divisible(nn.unbox(shapes).params, shardings.params, mesh)
  # The same function again: it is traced once for both. A sharding is a pytree
  # prefix of the box that stands in its place.
  make = jax.jit(boxed, out_shardings=shardings)
  return nn.unbox(make(key))


def _require_divisible(params: Params, shardings: Params, mesh: Mesh) -> None:
  """Refuses, for example, an odd number of wordpieces over two devices."""
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
