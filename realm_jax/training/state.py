"""What a step reads and writes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Int

from realm_jax.partitioning import rules


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Parameters by component, optimizer state and the count of steps done."""

  step: Int[Array, ""]
  params: dict[str, Any]
  optimizer: optax.OptState


def create_state(
  init: Callable[[jax.Array], dict[str, Any]],
  optimizer: optax.GradientTransformation,
  *,
  seed: int,
  mesh: Mesh,
) -> tuple[TrainState, Any]:
  """Initialises a state where it will live, and returns its shardings.

  Args:
    init: from a random key to parameters by component, in flax's boxes.
    optimizer: the optimizer.
    seed: of the initial values.
    mesh: the mesh; every parameter is made on its own devices.
  """

  def boxed(key):
    params = init(key)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      optimizer=optimizer.init(params),
    )

  key = jax.random.key(seed)
  shardings = rules.shardings(jax.eval_shape(boxed, key), mesh)
  make = jax.jit(lambda key: nn.unbox(boxed(key)), out_shardings=shardings)
  return make(key), shardings
