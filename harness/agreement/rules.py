"""Compares loss and optimizer with the published rules, in float64."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
import optax
import scipy.special

from harness.agreement.comparison import Row, differences
from realm_jax.objectives.marginal import Form, marginal
from realm_jax.objectives.masked_lm import masked_lm_loss
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.weights.mapped_weights import flattened, nested

_MAX_DIFFERENCE = 1e-6  # In float32.
_NUM_UPDATES = 50
_SHAPES = {
  "dense/kernel": (20, 30),
  "dense/bias": (30,),
  "norm/scale": (20,),
  "norm/bias": (20,),
}
Named = dict[str, np.ndarray]


def compare_signal(form: Form, *, seed: int = 0) -> Row:
  """Compares ∂loss/∂f(x, z) with r(z) of section 3.3 of REALM's paper.

  Args:
    form: Form of the loss.
    seed: Seed of relevance, logits, targets and number of masks.
  """
  batch, candidates, masks, words = 3, 5, 4, 7
  rng = np.random.default_rng(seed)
  relevance = rng.normal(0, 1.5, (batch, candidates))
  logits = rng.normal(0, 2.0, (batch, candidates, masks, words))
  targets = rng.integers(0, words, (batch, masks))
  num_scored = rng.integers(1, masks + 1, (batch, 1))
  weights = (np.arange(masks) < num_scored).astype(np.float64)

  def loss(relevance: Any, logits: Any, weights: Any) -> jax.Array:
    objective = functools.partial(marginal, form=form)
    return masked_lm_loss(
      relevance, logits, targets, weights, objective=objective
    ).loss.mean

  gradient = jax.jit(jax.grad(loss))(
    np.float32(relevance), np.float32(logits), np.float32(weights)
  )
  return differences(
    f"∂loss/∂f(x, z) and r(z), {form}",
    np.asarray(gradient),
    _loss_gradient(relevance, logits, targets, weights, form),
    limit=_MAX_DIFFERENCE,
  )


def compare_adam(*, weight_decay: float = 0.01) -> Row:
  """Compares fifty updates of a small model with BERT's version of Adam."""
  config = OptimizerConfig(
    learning_rate=1e-3, warmup_steps=10, weight_decay=weight_decay
  )
  num_steps = 4 * _NUM_UPDATES
  rng = np.random.default_rng(0)

  def draw(size: float) -> Named:
    return {
      path: rng.normal(0, size, shape).astype(np.float32)
      for path, shape in _SHAPES.items()
    }

  params = draw(0.3)
  # Some gradients are clipped, and others are not.
  gradients = [draw(0.01 * (1 + step % 4)) for step in range(_NUM_UPDATES)]
  expected = bert_adam(params, gradients, config, num_steps=num_steps)
  optimizer = make_optimizer(config, num_steps=num_steps)
  tree = {"reader": nested(params)}
  state, update = optimizer.init(tree), jax.jit(optimizer.update)
  for gradient in gradients:
    updates, state = update({"reader": nested(gradient)}, state, tree)
    tree = cast(Any, optax.apply_updates(tree, updates))
  ours = flattened(tree["reader"])
  return differences(
    f"BERT's Adam, {_NUM_UPDATES} steps, weight decay {weight_decay}",
    np.concatenate([np.ravel(ours[path]) for path in _SHAPES]),
    np.concatenate([np.ravel(expected[path]) for path in _SHAPES]),
    limit=_MAX_DIFFERENCE,
  )


def _loss_gradient(
  relevance: np.ndarray,
  logits: np.ndarray,
  targets: np.ndarray,
  weights: np.ndarray,
  form: str,
) -> np.ndarray:
  """Returns −Σ r(z), averaged like the loss over masks or examples.

  r(z) = [p(y|z, x) / p(y|x) − 1] p(z|x), with p(z|x) the softmax of f(x, z),
  and ∇ log p(y|x) = Σ_z r(z) ∇ f(x, z).
  """
  words = scipy.special.softmax(logits, axis=-1)
  # Likelihood of each mask's word under each candidate, [b k m].
  likelihood = np.take_along_axis(words, targets[:, None, :, None], axis=-1)
  likelihood = np.where(weights[:, None] > 0, likelihood[..., 0], 1)
  count = weights.sum()
  if form == "joint":
    likelihood = np.prod(likelihood, axis=-1, keepdims=True)
    count = len(relevance)
  prior = scipy.special.softmax(relevance, axis=-1)[..., None]
  marginal = np.sum(prior * likelihood, axis=1, keepdims=True)
  return -np.sum((likelihood / marginal - 1) * prior, axis=-1) / count


def bert_adam(
  initial: Named,
  gradients: Sequence[Named],
  config: OptimizerConfig,
  *,
  num_steps: int,
) -> Named:
  """Computes some steps of `optimization.py` in google-research/bert.

  Gradients are clipped to a global norm of 1. Adam has β 0.9 and 0.999, ε 1e-6
  and no bias correction. Weight decay is decoupled, and excludes LayerNorm
  parameters and biases. The learning rate falls linearly from step 0 to zero at
  `num_steps`, in addition to a linear warm-up.

  Returns:
    The parameters after these steps.
  """
  params = {name: p.astype(np.float64) for name, p in initial.items()}
  mean = {name: np.zeros_like(p) for name, p in params.items()}
  variance = {name: np.zeros_like(p) for name, p in params.items()}
  warmup = config.warmup_steps or 0
  for step, gradient in enumerate(gradients):
    norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in gradient.values()))
    factor = min(1.0, 1.0 / norm)
    rate = config.learning_rate * (1 - step / num_steps)
    if step < warmup:
      rate = config.learning_rate * step / warmup
    for name, unclipped in gradient.items():
      g = np.float64(unclipped) * factor
      mean[name] = 0.9 * mean[name] + 0.1 * g
      variance[name] = 0.999 * variance[name] + 0.001 * g**2
      update = mean[name] / (np.sqrt(variance[name]) + 1e-6)
      if name.rpartition("/")[2] not in ("scale", "bias"):
        update = update + (config.weight_decay or 0.0) * params[name]
      params[name] = params[name] - rate * update
  return params
