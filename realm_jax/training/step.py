"""The step that all stages share: gradient and update.

A stage's loss returns weighted sums over the batch, which micro-batches can
add (`realm_jax/objectives/weighted.py`). The step differentiates their mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.stage_losses import Loss
from realm_jax.training.state import TrainState

B = TypeVar("B")
Metrics = dict[str, jax.Array]


class Microbatches(NamedTuple):
  """Parts of a batch whose gradients are added, one after the other.

  Attributes:
    count: Number of parts.
    groups: Number of groups of rows, each of which has all of its parts.
  """

  count: int = 1
  groups: int = 1

  def split(self, batch: B) -> B:
    """Returns the parts of each array along a new first dimension."""

    def parts(x: jax.Array) -> jax.Array:
      x = x.reshape(self.groups, self.count, -1, *x.shape[1:])
      x = jnp.swapaxes(x, 0, 1)
      return x.reshape(self.count, -1, *x.shape[3:])

    return jax.tree.map(parts, batch)


WHOLE_BATCH = Microbatches()


def _gradient(
  loss_of: Callable[[Params, B], WeightedLoss],
  params: Params,
  batch: B,
  microbatches: Microbatches,
) -> tuple[Params, Metrics]:
  """Returns the gradient of a batch's loss, and the means of its metrics."""
  if microbatches.count == 1:

    def mean(params: Params) -> tuple[jax.Array, Metrics]:
      weighted = loss_of(params, batch)
      return weighted.loss.mean, weighted.means()

    return jax.grad(mean, has_aux=True)(params)

  def total(params: Params, part: B) -> tuple[jax.Array, WeightedLoss]:
    weighted = loss_of(params, part)
    return weighted.loss.total, weighted

  def add(
    sums: tuple[Params, WeightedLoss], part: B
  ) -> tuple[tuple[Params, WeightedLoss], None]:
    return jax.tree.map(jnp.add, sums, of_part(params, part)), None

  of_part = jax.grad(total, has_aux=True)
  parts = microbatches.split(batch)
  shapes = jax.eval_shape(of_part, params, jax.tree.map(lambda x: x[0], parts))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  (gradient, weighted), _ = jax.lax.scan(add, zeros, parts)
  weight = jnp.maximum(weighted.loss.weight, 1.0)
  return jax.tree.map(lambda g: g / weight, gradient), weighted.means()


def batch_gradient(
  state: TrainState,
  batch: B,
  *,
  loss: Loss[B],
  seed: int,
  freeze_retriever: bool = False,
  microbatches: Microbatches = WHOLE_BATCH,
) -> tuple[Params, Metrics]:
  """Computes the gradient of one batch, and the loss's metrics.

  `seed`, folded with the step, is that of the dropout masks. The gradient of a
  retriever that is frozen in this step is not computed. With microbatches, the
  masks are the same, and the gradient is that of the whole batch.
  """
  dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)

  def loss_of(params: Params, batch: B) -> WeightedLoss:
    if freeze_retriever:
      frozen = jax.lax.stop_gradient(params["retriever"])
      params = {**params, "retriever": frozen}
    return loss(params, batch, dropout_key)

  return _gradient(loss_of, state.params, batch, microbatches)


def update(
  state: TrainState,
  gradient: Params,
  metrics: Metrics,
  *,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Metrics]:
  """Updates the parameters by a gradient.

  Returns:
    The next state and the metrics, with `gradient_norm` and `parameter_norm`
    (of the next state) added.
  """
  updates, optimizer_state = optimizer.update(
    gradient, state.optimizer, state.params
  )
  params = cast(Params, optax.apply_updates(state.params, updates))
  norms = {
    "gradient_norm": optax.tree.norm(gradient),
    "parameter_norm": optax.tree.norm(params),
  }
  step = state.step + jnp.ones_like(state.step)
  return TrainState(step, params, optimizer_state), {**metrics, **norms}


def train_step(
  state: TrainState,
  batch: B,
  *,
  optimizer: optax.GradientTransformation,
  **settings: Any,
) -> tuple[TrainState, Metrics]:
  """Computes the gradient of one batch and updates the parameters.

  The further settings are those of `batch_gradient`. Returns what `update`
  returns.
  """
  gradient, metrics = batch_gradient(state, batch, **settings)
  return update(state, gradient, metrics, optimizer=optimizer)
