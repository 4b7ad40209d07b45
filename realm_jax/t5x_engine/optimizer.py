"""Our optimizer as t5x takes it."""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree
from t5x import optimizers


class StageOptimizer(optimizers.OptaxWrapper):
  """An optimizer of parameters by component, in t5x's wrapper.

  t5x keeps parameters in flax's frozen dictionaries, ours are plain ones.

  Args:
    optimizer: Optimizer of the run, with its learning-rate schedule.
    freeze_retriever_steps: Number of first steps in which the retriever's
      gradient counts as zero, as in `train_step`.
  """

  def __init__(
    self,
    optimizer: optax.GradientTransformation,
    *,
    freeze_retriever_steps: int = 0,
  ):
    super().__init__(optimizer)
    self._freeze_retriever_steps = freeze_retriever_steps

  def init_state(self, params: PyTree) -> optimizers.OptimizerState:
    """Returns the state before the first step."""
    return super().init_state(flax.core.unfreeze(params))

  def apply_gradient(
    self,
    hyper_params: Any,
    params: PyTree,
    state: optimizers.OptimizerState,
    grads: PyTree,
  ) -> tuple[PyTree, optimizers.OptimizerState]:
    """Returns the parameters and the state after a step."""
    gradient = flax.core.unfreeze(grads)
    if self._freeze_retriever_steps:
      trains = state.step >= self._freeze_retriever_steps
      gradient["retriever"] = jax.tree.map(
        lambda g: jnp.where(trains, g, jnp.zeros_like(g)),
        gradient["retriever"],
      )
    updated, state = super().apply_gradient(
      hyper_params, flax.core.unfreeze(params), state, gradient
    )
    return flax.core.freeze(updated), state

  def derive_logical_axes(
    self, optimizer: optimizers.Optimizer, param_logical_axes: PyTree
  ) -> optimizers.Optimizer:
    """Returns the logical axes of parameters and state, in their places.

    What has the structure of the parameters, as Adam's moments do, has their
    axes. The rest are scalars.
    """
    axes = flax.core.unfreeze(param_logical_axes)
    structure = jax.tree.structure(flax.core.unfreeze(optimizer.target))

    def is_like_params(node: PyTree) -> bool:
      return jax.tree.structure(node) == structure

    state = jax.tree.map(
      lambda node: axes if is_like_params(node) else None,
      optimizer.state,
      is_leaf=is_like_params,
    )
    return optimizer.replace(target=param_logical_axes, state=state)
