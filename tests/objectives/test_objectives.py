"""The masked-LM loss: each objective against its formula, and its metrics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives import masked_lm
from realm_jax.objectives.marginal import FORMS, marginal
from realm_jax.objectives.masked_lm import (
  OBJECTIVES,
  knn_lm,
  masked_lm_loss,
)
from tests.printed_commands import fenced

B, K, M, V = 3, 4, 2, 5
STEP = 1e-6
TEMPERATURES = {"leave_one_out": 0.3, "perplexity": 0.3, "replug": 2.0}
CASES = [
  pytest.param(
    *(name, form, TEMPERATURES.get(name)),
    marks=[pytest.mark.slow] if name in TEMPERATURES else [],
  )
  for name, one in OBJECTIVES.items()
  # Others learn from attention: see tests/training/test_text_to_text.py.
  if one.target in (None, "likelihood")
  for form in FORMS
]


def example():
  rng = np.random.default_rng(0)
  # The last example has no masks, as where its words could not be found.
  weights = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
  return (
    rng.normal(0, 1.5, (B, K)),
    rng.normal(0, 2.0, (B, K, M, V)),
    rng.integers(0, V, (B, M)),
    weights,
  )


def _log_likelihood(logits, targets, weights):
  """ℓ_z of each example and block."""
  words = np.take_along_axis(
    np.log(_softmax(logits)), targets[:, None, :, None], axis=-1
  )
  return np.sum(words[..., 0] * weights[:, None], axis=-1)


def _softmax(x):
  x = np.exp(x)
  return x / x.sum(axis=-1, keepdims=True)


def _kl(p, q):
  return sum(p[z] * np.log(p[z] / q[z]) for z in range(K))


def _target(name, p, words, temperature):
  """The distribution over blocks that the retriever should learn."""
  likelihood = [np.prod(words[z]) for z in range(K)]
  if name == "perplexity":
    target = [likelihood[z] ** (1 / temperature) for z in range(K)]
  elif name == "replug":
    target = [np.exp(likelihood[z] / temperature) for z in range(K)]
  else:
    target = []
    for left_out in range(K):
      others = [z for z in range(K) if z != left_out]
      share = sum(p[z] for z in others)
      without = sum(p[z] / share * likelihood[z] for z in others)
      target.append((1 / without) ** (1 / temperature))
  return np.array(target) / sum(target)


def _textbook(name, form, temperature, live, stopped, targets, weights):
  """The formula; `stopped` are the same scores where they have no gradient."""
  total = count = 0.0
  for b in range(B):
    masks = [m for m in range(M) if weights[b, m]]
    if not masks:
      continue
    (p, words), (p0, words0) = (
      (
        _softmax(relevance[b]),
        [
          [_softmax(logits[b, z, m])[targets[b, m]] for m in masks]
          for z in range(K)
        ],
      )
      for relevance, logits in (live, stopped)
    )

    def marginal(p, words, masks=masks):
      if form == "joint":
        return np.log(sum(p[z] * np.prod(words[z]) for z in range(K)))
      return sum(
        np.log(sum(p[z] * words[z][j] for z in range(K)))
        for j in range(len(masks))
      )

    weight = len(masks) if form == "per_token" else 1
    if name == "marginal":
      total -= marginal(p, words)
    elif name == "emdr2":
      total -= marginal(p, words0)
      total -= sum(np.log(np.prod(words[z])) for z in range(K)) / K
    else:
      target = _target(name, p0, words0, temperature)
      kl = _kl(p, target) if name == "replug" else _kl(target, p)
      total += weight * kl - marginal(p0, words)
    count += weight
  return total / count


def _slopes(function, x):
  """The derivative of a function by finite differences."""
  slopes = np.zeros_like(x)
  for place in np.ndindex(x.shape):
    up, down = x.copy(), x.copy()
    up[place] += STEP
    down[place] -= STEP
    slopes[place] = (function(up) - function(down)) / (2 * STEP)
  return slopes


@functools.cache
def _evaluate(name, form, temperature=None):
  """The loss, its gradients, and the means of all metrics."""
  relevance, logits, *rest = example()
  settings = {} if temperature is None else {"temperature": temperature}
  objective = functools.partial(OBJECTIVES[name].loss, form=form, **settings)

  def loss(relevance, logits):
    weighted = masked_lm_loss(relevance, logits, *rest, objective=objective)
    return weighted.loss.mean, weighted.means()

  evaluate = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  with jax.enable_x64(True):
    (value, means), gradients = evaluate(relevance, logits)
  return value, gradients, means


@pytest.mark.parametrize(("name", "form", "temperature"), CASES)
def test_value_and_gradient_are_the_formulas(name, form, temperature):
  relevance, logits, targets, weights = example()
  value, (to_relevance, to_logits), means = _evaluate(name, form, temperature)

  def expected(relevance_now, logits_now):
    live, stopped = (relevance_now, logits_now), (relevance, logits)
    return _textbook(name, form, temperature, live, stopped, targets, weights)

  assert value == pytest.approx(expected(relevance, logits), rel=1e-6)
  np.testing.assert_allclose(
    to_relevance, _slopes(lambda x: expected(x, logits), relevance), atol=1e-6
  )
  np.testing.assert_allclose(
    to_logits, _slopes(lambda x: expected(relevance, x), logits), atol=1e-6
  )
  # What is told of retrieval can be compared between objectives.
  of_marginal = _evaluate("marginal", form)[2]
  for metric in of_marginal.keys() - {"loss"}:
    assert means[metric] == pytest.approx(of_marginal[metric]), metric


# Operation by operation it would compile for longer.
@functools.partial(jax.jit, static_argnames=("form", "has_null"))
def _loss(*example, form="per_token", has_null=True):
  objective = functools.partial(marginal, form=form)
  return masked_lm_loss(*example, objective=objective, has_null=has_null)


def _log(*probabilities):
  return np.log(np.array(probabilities, np.float32))


def test_metrics_by_hand():
  # Two candidates with p(z|x) = 3/4 (null), 1/4; two masks, words of two.
  relevance = _log(0.75, 0.25)[None]
  null, other = _log([0.2, 0.8], [0.5, 0.5]), _log([0.6, 0.4], [0.9, 0.1])
  logits = np.stack([null, other])[None]
  inputs = relevance, logits, np.zeros((1, 2), np.int32), np.ones((1, 2))
  with_null = _loss(*inputs)
  expected = {
    "log_likelihood": (np.log(0.3) + np.log(0.6)) / 2,
    "log_likelihood_null": (np.log(0.2) + np.log(0.5)) / 2,
    # log 0.3 / 0.2 and log 0.6 / 0.5.
    "retrieval_utility": (np.log(1.5) + np.log(1.2)) / 2,
    # The second candidate alone: log 0.6 / 0.2 and log 0.9 / 0.5.
    "best_utility": (np.log(3.0) + np.log(1.8)) / 2,
    "null_probability": 0.75,
    "candidate_entropy": -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)),
    # The mixture says 0.3 and 0.6; the null block 0.2, and a tie at 0.5.
    "masked_accuracy": 0.5,
    "masked_accuracy_null": 0.5,
  }
  for name, value in expected.items():
    assert with_null.means()[name] == pytest.approx(value, rel=1e-5), name
  # Without a null block nothing is compared with it.
  without = _loss(*inputs, has_null=False)
  assert without.loss.mean == with_null.loss.mean
  assert with_null.metrics.keys() - without.metrics.keys() == {
    "masked_accuracy_null",
    "log_likelihood_null",
    "retrieval_utility",
    "best_utility",
    "null_probability",
  }


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_masks_costs_nothing(form):
  relevance, logits, targets, weights = map(np.float32, example())
  targets = targets.astype(np.int32)

  def loss(relevance, logits):
    weighted = _loss(relevance, logits, targets, 0 * weights, form=form)
    return weighted.loss.mean

  value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(relevance, logits)
  assert value == 0.0
  assert not any(np.any(gradient) for gradient in gradients)


def test_the_example_of_the_documents_runs(monkeypatch):
  monkeypatch.setattr(masked_lm, "OBJECTIVES", dict(masked_lm.OBJECTIVES))
  names: dict = {}
  exec(fenced("docs/extending.md", "## An objective"), names)
  arrays = example()
  added = masked_lm.OBJECTIVES["best_block"]
  weighted = masked_lm_loss(*map(jnp.asarray, arrays), objective=added.loss)
  assert added.has_target
  expected = [
    np.log(_softmax(relevance)[np.argmax(likelihood)])
    for relevance, likelihood in zip(
      arrays[0], _log_likelihood(*arrays[1:]), strict=True
    )
  ]
  # Examples count as often as they have masks.
  assert weighted.means()["retriever_loss"] == pytest.approx(
    -np.average(expected, weights=arrays[3].sum(axis=1)), rel=1e-5
  )


def test_words_of_keys_are_mixed_in():
  rng = np.random.default_rng(0)
  n, k, v = 6, 5, 9
  logits = rng.normal(size=(n, v)).astype(np.float32)
  log_probs = jax.nn.log_softmax(logits)
  scores = rng.uniform(-1, 1, (n, k)).astype(np.float32)
  words, targets = rng.integers(v, size=(n, k)), rng.integers(v, size=n)
  words[:3, 1] = targets[:3]
  # Some keys are left out, and all of the last row.
  scores[0, 0] = scores[4, 2:] = scores[5] = -np.inf
  share, temperature = 0.3, 0.2
  expected, best = [], []
  for row in range(n):
    mixed = np.exp(np.asarray(log_probs[row], np.float64))
    weights = np.exp(np.float64(scores[row]) / temperature)
    if weights.any():
      mixed *= 1 - share
      for word, weight in zip(words[row], weights, strict=True):
        mixed[word] += share * weight / weights.sum()
    expected.append(np.log(mixed[targets[row]]))
    best.append(np.argmax(mixed) == targets[row])
  inputs = log_probs, scores, words, targets
  log_p, hits = knn_lm(*inputs, share, temperature)
  np.testing.assert_allclose(log_p, expected, rtol=1e-5)
  assert hits.tolist() == best
  log_p, hits = knn_lm(*inputs, 0.0, temperature)
  assert (log_p == log_probs[np.arange(n), targets]).all()
  assert (hits == (log_probs.argmax(axis=1) == targets)).all()
