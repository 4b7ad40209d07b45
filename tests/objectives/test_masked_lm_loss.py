"""The marginal masked-LM loss: by hand, in numpy, and what it teaches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.agreement.rules import compare_signal
from realm_jax.objectives.marginal import FORMS, marginal
from realm_jax.objectives.masked_lm import masked_lm_loss

B, K, M, V = 3, 4, 3, 6


# Operation by operation it would compile for longer.
@functools.partial(jax.jit, static_argnames=("form", "has_null"))
def _compiled(*example, form="per_token", has_null=True):
  objective = functools.partial(marginal, form=form)
  return masked_lm_loss(*example, objective=objective, has_null=has_null)


def _log(*probabilities):
  return np.log(np.array(probabilities, np.float32))


def _example(seed, *, masks=M):
  rng = np.random.default_rng(seed)
  weights = (np.arange(M) < rng.integers(1, masks + 1, (B, 1))).astype(
    np.float32
  )
  return (
    rng.normal(0, 1.5, (B, K)).astype(np.float32),
    rng.normal(0, 2.0, (B, K, M, V)).astype(np.float32),
    rng.integers(0, V, (B, M)).astype(np.int32),
    weights,
  )


def _loss(*example, form="per_token"):
  weighted = _compiled(*map(jnp.asarray, example), form=form)
  return weighted.loss.mean, weighted.means()


# Two candidates with p(z|x) = 3/4 (null), 1/4; two masks, words of two.
RELEVANCE = _log(0.75, 0.25)[None]
LOGITS = np.stack([_log([0.2, 0.8], [0.5, 0.5]), _log([0.6, 0.4], [0.9, 0.1])])[
  None
]
TARGETS = np.zeros((1, 2), np.int32)


def test_metrics_by_hand():
  _, metrics = _loss(RELEVANCE, LOGITS, TARGETS, np.ones((1, 2), np.float32))
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
    assert metrics[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_masks_costs_nothing(form):
  relevance, logits, targets, weights = _example(5)

  def loss(relevance, logits):
    return _loss(relevance, logits, targets, 0 * weights, form=form)[0]

  value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(relevance, logits)
  assert value == 0.0
  assert not any(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_what_the_retriever_learns(form, seed):
  # r(z) of the paper's section 3.3.
  row = compare_signal(form, seed=seed)
  assert row.passed, row


def test_without_a_null_block_nothing_is_compared_with_it():
  example = list(map(jnp.asarray, _example(0)))
  with_null = _compiled(*example)
  without = _compiled(*example, has_null=False)
  assert without.loss.mean == with_null.loss.mean
  missing = with_null.metrics.keys() - without.metrics.keys()
  assert missing == {
    "masked_accuracy_null",
    "log_likelihood_null",
    "retrieval_utility",
    "best_utility",
    "null_probability",
  }
