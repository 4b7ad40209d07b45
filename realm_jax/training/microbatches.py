"""Gradients of a batch in parts, one after the other, for less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.state import Metrics

if TYPE_CHECKING:
  from realm_jax.training.step import Part, TrainStep

T = TypeVar("T")


def summed_gradient(
  step: TrainStep, params: Params, fixed: Params, whole: Part, key: jax.Array
) -> tuple[Params, Metrics]:
  """Returns the gradient of a batch, as the sum of its parts' gradients."""

  def gradient_of(part: Part) -> tuple[Params, WeightedLoss]:
    def loss(
      params: Params, inputs: EncoderInputs
    ) -> tuple[jax.Array, WeightedLoss]:
      encoders = step.encoders(params, fixed, key)
      weighted = step.stage.loss(encoders, part.batch, inputs)
      # Gradients of sums can be added; they are divided at the end.
      return weighted.loss.total, weighted

    return step.on_inputs(
      part, lambda inputs: jax.grad(loss, has_aux=True)(params, inputs)
    )

  gradient, weighted = _sum_over(gradient_of, _parts(step, whole))
  divisor = weighted.loss.divisor
  return jax.tree.map(lambda g: g / divisor, gradient), weighted.means()


def compared_gradient(
  step: TrainStep, params: Params, fixed: Params, whole: Part, key: jax.Array
) -> tuple[Params, Metrics]:
  """Returns the gradient of a loss that compares all examples of a batch.

  First the loss is differentiated with respect to all vectors. Then each part
  is embedded again, with the same dropout masks, to differentiate its vectors
  with respect to the parameters (GradCache, Gao et al. 2021, arXiv 2101.06983).
  This costs one more forward pass than the whole batch.
  """
  stage: Any = step.stage

  @jax.custom_vjp
  def vectors_of(
    params: Params, fixed: Params, part: Part, key: jax.Array
  ) -> Any:
    encoders = step.encoders(params, fixed, key)
    return step.on_inputs(part, lambda inputs: stage.embed(encoders, inputs))

  def backward(arguments: Any, slopes: Any) -> Any:
    params, fixed, part, key = arguments

    def pulled_back(inputs: EncoderInputs) -> Params:
      _, pull = jax.vjp(
        lambda own: stage.embed(step.encoders(own, fixed, key), inputs), params
      )
      return pull(slopes)[0]

    return step.on_inputs(part, pulled_back), None, None, None

  vectors_of.defvjp(lambda *given: (vectors_of(*given), given), backward)

  def compared(params: Params) -> tuple[jax.Array, WeightedLoss]:
    vectors = jax.lax.map(
      lambda part: vectors_of(params, fixed, part, key), _parts(step, whole)
    )
    vectors = _joined(vectors, devices=step.layout.num_devices)
    weighted = stage.compare(step.components, vectors, whole.batch)
    return weighted.loss.mean, weighted

  gradient, weighted = jax.grad(compared, has_aux=True)(params)
  return gradient, weighted.means()


def _parts(step: TrainStep, whole: Part) -> Part:
  """Splits each array into parts along a new first dimension.

  Each device keeps all parts of its own examples.
  """
  devices, parts = step.layout.num_devices, step.num_microbatches

  def of_parts(x: jax.Array) -> jax.Array:
    x = x.reshape(devices, parts, -1, *x.shape[1:])
    x = jnp.swapaxes(x, 0, 1)
    return x.reshape(parts, -1, *x.shape[3:])

  return jax.tree.map(of_parts, whole)


def _joined(parts: T, *, devices: int) -> T:
  """Joins the parts that `_parts` made."""

  def of_batch(x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), devices, -1, *x.shape[2:])
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])

  return jax.tree.map(of_batch, parts)


def _sum_over(function: Callable[[Any], T], parts: Any) -> T:
  """Returns the sum of a function of parts, one after the other."""
  first = jax.tree.map(lambda x: x[0], parts)
  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, first)
  )
  total, _ = jax.lax.scan(
    lambda sums, part: (jax.tree.map(jnp.add, sums, function(part)), None),
    zeros,
    parts,
  )
  return total
