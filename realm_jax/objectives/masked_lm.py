"""The loss of pre-training by one of its objectives, and its metrics."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray
from realm_jax.objectives.distillation import (
  leave_one_out,
  perplexity,
  replug,
)
from realm_jax.objectives.marginal import (
  Form,
  ObjectiveInputs,
  emdr2,
  marginal,
  marginal_token_likelihood,
)
from realm_jax.objectives.weighted import Average, WeightedLoss


class Objective(NamedTuple):
  """An objective of pre-training.

  Attributes:
    loss: Function of the inputs and of a `form`, `per_token` or `joint`.
    target: What its target for p(z|x) is made of; None if it has none. An
      objective with a target also takes its `temperature`. Those made of
      attention are for a fused reader (`models.t5.CrossAttention`).
  """

  loss: Callable[..., WeightedLoss]
  target: Literal["likelihood", "first_score", "weighted_norm"] | None = None

  @property
  def has_target(self) -> bool:
    """Whether it has a target for p(z|x)."""
    return self.target is not None

  def of(
    self, form: Form, temperature: float | None = None
  ) -> Callable[[ObjectiveInputs], WeightedLoss]:
    """Returns the loss in a form, by default with its usual temperature.

    Example:
      >>> OBJECTIVES["replug"].of("joint", temperature=0.1).keywords
      {'form': 'joint', 'temperature': 0.1}
    """
    settings = {} if temperature is None else {"temperature": temperature}
    return functools.partial(self.loss, form=form, **settings)


# Objectives by name. A module of the user's own may add others.
OBJECTIVES: dict[str, Objective] = {
  "marginal": Objective(marginal),
  "emdr2": Objective(emdr2),
  "leave_one_out": Objective(leave_one_out, "likelihood"),
  "perplexity": Objective(perplexity, "likelihood"),
  "replug": Objective(replug, "likelihood"),
  "fid_kd": Objective(perplexity, "first_score"),
  "attention_norm": Objective(perplexity, "weighted_norm"),
}


def require_objective(
  name: str,
  *,
  num_candidates: int,
  temperature: float | None,
  setting: str = "NUM_CANDIDATES",
) -> Objective:
  """Returns the objective of a stage, whose `setting` sets `num_candidates`.

  Raises:
    RealmError: There is none of this name, or it does not fit what else is set.

  Example:
    >>> found = require_objective("replug", num_candidates=8, temperature=None)
    >>> found.target
    'likelihood'
  """
  if name not in OBJECTIVES:
    raise RealmError(
      f"OBJECTIVE={name!r}; want one of {', '.join(OBJECTIVES)}; name the "
      "module that adds another by --modules"
    )
  objective = OBJECTIVES[name]
  if temperature is not None and not objective.has_target:
    raise RealmError(
      f"target_temperature={temperature}: the objective {name!r} has no "
      "target; leave TARGET_TEMPERATURE out, or choose an OBJECTIVE that has "
      f"one: {[name for name, one in OBJECTIVES.items() if one.has_target]}"
    )
  if name == "leave_one_out" and num_candidates < 2:
    raise RealmError(
      "the objective 'leave_one_out' compares candidates; raise "
      f"{setting}={num_candidates} to 2 or more"
    )
  return objective


def masked_lm_loss(
  relevance: Float[Array, "b k"],
  logits: Float[Array, "b k m v"],
  targets: Int[AnyArray, "b m"],
  weights: Float[AnyArray, "b m"],
  *,
  objective: Callable[[ObjectiveInputs], WeightedLoss] = marginal,
  target_logits: Float[Array, "b k m v"] | None = None,
  has_null: bool = True,
) -> WeightedLoss:
  """Returns an objective, with p(z|x) the softmax over the candidates.

  Whatever the objective, the metrics are those of the marginal likelihood, and
  so can be compared. `retrieval_utility` is the released code's
  log p(y|x) − log p(y|null, x) for a token; `best_utility` is the same for
  the best single candidate, log p(y|z, x) − log p(y|null, x).
  `log_likelihood` is log p(y|x) for a token, whatever the form, and
  `log_likelihood_null` log p(y|null, x).

  Args:
    relevance: Scores f(x, z).
    logits: Scores of the vocabulary at each mask.
    targets: Ids of the words behind the masks.
    weights: 1 where there is a scored mask, 0 at padding.
    objective: Function from the inputs to the loss, and its own metrics.
    target_logits: The same scores without dropout, from which the target of
      p(z|x) is made; None for `logits`. Their gradient is not used.
    has_null: Whether candidate 0 is the null block, and compared with.

  Example:
    >>> relevance = jnp.zeros((1, 2))  # The null block and another.
    >>> logits = jnp.log(jnp.array([[[[0.5, 0.5]], [[0.1, 0.9]]]]))
    >>> targets, weights = jnp.array([[1]]), jnp.ones((1, 1))
    >>> loss = masked_lm_loss(relevance, logits, targets, weights)
    >>> jnp.exp(-loss.loss.mean)
    Array(0.7, dtype=float32)
    >>> loss.metrics["retrieval_utility"].mean
    Array(0.336, dtype=float32)
  """
  log_prior = jax.nn.log_softmax(relevance, axis=-1)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  token_likelihood = _of_targets(log_probs, targets)
  of_target = token_likelihood
  if target_logits is not None:
    of_target = _of_targets(jax.nn.log_softmax(target_logits, axis=-1), targets)
  of_target = jnp.sum(of_target * weights[:, None], axis=-1)
  inputs = ObjectiveInputs(
    log_prior, token_likelihood, weights, jax.lax.stop_gradient(of_target)
  )
  weighted = objective(inputs)
  if not isinstance(weighted, WeightedLoss):
    raise RealmError(
      "the objective returned an object of type "
      f"{type(weighted).__name__}; want a WeightedLoss, such as "
      "WeightedLoss(Average.of(losses), {})"
    )

  token_marginal = marginal_token_likelihood(inputs)
  prior = jax.lax.stop_gradient(jnp.exp(log_prior))
  mixture = jnp.einsum(
    "bk,bkmv->bmv", prior, jnp.exp(jax.lax.stop_gradient(log_probs))
  )
  metrics = {
    "masked_accuracy": Average.of(
      jnp.argmax(mixture, axis=-1) == targets, weights
    ),
    "log_likelihood": Average.of(token_marginal, weights),
    "candidate_entropy": Average.of(-jnp.sum(prior * log_prior, axis=-1)),
  }
  if has_null:
    null = token_likelihood[:, 0]
    best = jnp.max(token_likelihood, axis=1)
    null_correct = jnp.argmax(logits[:, 0], axis=-1) == targets
    metrics |= {
      "masked_accuracy_null": Average.of(null_correct, weights),
      "log_likelihood_null": Average.of(null, weights),
      "retrieval_utility": Average.of(token_marginal - null, weights),
      "best_utility": Average.of(best - null, weights),
      "null_probability": Average.of(prior[:, 0]),
    }
  return WeightedLoss(weighted.loss, {**metrics, **weighted.metrics})


def _of_targets(
  log_probs: Float[Array, "b k m v"], targets: Int[AnyArray, "b m"]
) -> Float[Array, "b k m"]:
  """Returns log p(y_j|z, x) of the words behind the masks."""
  return jnp.take_along_axis(log_probs, targets[:, None, :, None], axis=-1)[
    ..., 0
  ]


def knn_lm(
  log_probs: Float[Array, "n v"],
  scores: Float[AnyArray, "n k"],
  words: Int[AnyArray, "n k"],
  targets: Int[AnyArray, " n"],
  share: float | Float[Array, ""],
  temperature: float | Float[Array, ""],
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
  """Returns log p of the targets, and whether each is the likeliest word.

  p = λ p_kNN + (1 − λ) p_LM, where p_kNN(y) ∝ Σᵢ 1[wordᵢ = y] exp(scoreᵢ / τ),
  for the `share` λ and the `temperature` τ (Khandelwal et al. 2020, arXiv
  1911.00172). A score of −∞ is no key's, and without keys λ is 0.

  Example, where p = 0.4 · 3/4 + 0.6 · 0.5:
    >>> model = jnp.log(jnp.array([[0.5, 0.5]]))
    >>> scores, words = jnp.zeros((1, 4)), jnp.array([[1, 1, 1, 0]])
    >>> log_p, is_likeliest = knn_lm(
    ...   model, scores, words, jnp.array([1]), share=0.4, temperature=1.0
    ... )
    >>> print(jnp.exp(log_p), is_likeliest)
    [0.6] [ True]
  """
  is_key = jnp.isfinite(scores)
  shares = share * is_key.any(axis=-1, keepdims=True)
  weights = jax.nn.softmax(scores / temperature, where=is_key)
  rows, place = jnp.arange(len(words))[:, None], jnp.asarray(targets)[:, None]
  nearest = jnp.zeros(log_probs.shape).at[rows, words].add(weights)
  probs = shares * nearest + (1 - shares) * jnp.exp(log_probs)
  of_target = jnp.logaddexp(
    jnp.log(shares * jnp.take_along_axis(nearest, place, axis=-1)),
    jnp.log1p(-shares) + jnp.take_along_axis(log_probs, place, axis=-1),
  )
  return of_target[:, 0], jnp.argmax(probs, axis=-1) == targets
