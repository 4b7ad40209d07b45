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
  """

  def boxed(key: jax.Array) -> TrainState:
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
