"""Published rules in numpy and float64, as references for ours."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float

Named = dict[str, np.ndarray]


def retriever_signal(
  relevance: Float[np.ndarray, "b k"], likelihood: Float[np.ndarray, "b k"]
) -> Float[np.ndarray, "b k"]:
  """Computes r(z) = [p(y|z, x) / p(y|x) − 1] p(z|x) of REALM's section 3.3.

  ∇ log p(y|x) = Σ_z r(z) ∇ f(x, z), with p(z|x) the softmax of f(x, z).

  Args:
    relevance: Scores f(x, z).
    likelihood: Probabilities p(y|z, x).
  """
  weights = np.exp(
    np.float64(relevance) - np.max(relevance, axis=-1, keepdims=True)
  )
  prior = weights / weights.sum(axis=-1, keepdims=True)
  marginal = np.sum(prior * likelihood, axis=-1, keepdims=True)
  return (likelihood / marginal - 1) * prior


def bert_adam(
  initial: Mapping[str, np.ndarray],
  gradients: Iterable[Mapping[str, np.ndarray]],
  *,
  learning_rate: float,
  warmup_steps: int,
  num_steps: int,
  weight_decay: float,
  is_decayed: Callable[[str], bool],
  clip_norm: float = 1.0,
) -> Named:
  """Computes some steps of `optimization.py` in google-research/bert.

  Global-norm clip; Adam with β 0.9 / 0.999 and ε 1e-6, without bias
  correction; decoupled weight decay; a rate that decays linearly to zero from
  step 0, with a linear warm-up on top.

  Args:
    initial: Initial parameters by name.
    gradients: Gradients of each step, by the same names.
    learning_rate: Peak of the learning rate.
    warmup_steps: Steps of warm-up.
    num_steps: Step at which the learning rate reaches zero.
    weight_decay: Rate of weight decay.
    is_decayed: Function that says whether a parameter decays, by name.
    clip_norm: Limit for the global norm of the gradients.

  Returns:
    The parameters after these steps.
  """
  params = {name: p.astype(np.float64) for name, p in initial.items()}
  mean = {name: np.zeros_like(p) for name, p in params.items()}
  variance = {name: np.zeros_like(p) for name, p in params.items()}
  for step, gradient in enumerate(gradients):
    norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in gradient.values()))
    factor = min(1.0, clip_norm / norm)
    rate = learning_rate * (1 - step / num_steps)
    if step < warmup_steps:
      rate = learning_rate * step / warmup_steps
    for name, unclipped in gradient.items():
      g = np.float64(unclipped) * factor
      mean[name] = 0.9 * mean[name] + 0.1 * g
      variance[name] = 0.999 * variance[name] + 0.001 * g**2
      update = mean[name] / (np.sqrt(variance[name]) + 1e-6)
      if is_decayed(name):
        update = update + weight_decay * params[name]
      params[name] = params[name] - rate * update
  return params
