"""ORQA's loss: by hand, in numpy, and where nothing is correct."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.open_qa import open_qa_loss

B, N, K, L, W = 4, 6, 2, 5, 3
# Operation by operation it would compile for longer.
_compiled = jax.jit(open_qa_loss, static_argnames="hard_em")


def example(seed):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, L + 1, (B, K))
  last = np.arange(L)[:, None] + np.arange(W)
  is_span = last[None, None] < lengths[:, :, None, None]
  is_answer = rng.random((B, K, L, W)) < 0.15
  has_answer = rng.random((B, N)) < 0.4
  # The last question has no answer anywhere; the one before only in blocks
  # that the reader does not see.
  has_answer[-1] = is_answer[-1] = is_answer[-2] = False
  has_answer[-2, -1] = True
  return (
    rng.normal(0, 2, (B, N)).astype(np.float32),
    has_answer,
    rng.normal(0, 2, (B, K, L, W)).astype(np.float32),
    is_span,
    is_answer,
  )


def _loss(*example):
  weighted = _compiled(*map(jnp.asarray, example))
  return weighted.loss.mean, weighted.means()


def _by_hand(scores, has_answer, span_logits, is_span, is_answer):
  retriever = reader = 0.0
  scores, span_logits = scores.astype(float), span_logits.astype(float)
  for b in range(B):
    all_blocks = sum(np.exp(scores[b]))
    correct = sum(np.exp(scores[b, n]) for n in range(N) if has_answer[b, n])
    retriever -= np.log(correct / all_blocks) if correct else 0.0
    all_spans = correct = 0.0
    for k, i, w in np.ndindex(K, L, W):
      if is_span[b, k, i, w]:
        value = np.exp(span_logits[b, k, i, w] + scores[b, k])
        all_spans += value
        correct += value * is_answer[b, k, i, w]
    reader -= np.log(correct / all_spans) if correct else 0.0
  return retriever / B, reader / B


def test_equals_loops_in_numpy():
  arrays = example(0)
  loss, metrics = _loss(*arrays)
  retriever, reader = _by_hand(*arrays)
  assert metrics["retriever_loss"] == pytest.approx(retriever, rel=1e-5)
  assert metrics["reader_loss"] == pytest.approx(reader, rel=1e-5)
  assert loss == pytest.approx(retriever + reader, rel=1e-5)
  _, has_answer, _, is_span, is_answer = arrays
  is_found = has_answer.any(axis=1), (is_answer & is_span).any(axis=(1, 2, 3))
  assert metrics["recall_searched"] == is_found[0].mean()
  assert metrics["recall_read"] == is_found[1].mean()


def test_hard_em_takes_the_best_correct_span_alone():
  # Of spans with exp(score) 1, 2, 3 and 4, the first three are correct. The
  # block's score is added to all of them.
  logits = jnp.log(jnp.array([1.0, 2.0, 3.0, 4.0])).reshape(1, 1, 4, 1)
  is_answer = jnp.array([True, True, True, False]).reshape(1, 1, 4, 1)
  is_span, has_answer = jnp.ones((1, 1, 4, 1), bool), jnp.ones((1, 2), bool)

  def loss(logits):
    scores = jnp.array([[5.0, 1.0]])
    weighted = _compiled(
      scores, has_answer, logits, is_span, is_answer, hard_em=True
    )
    return weighted.means()["reader_loss"]

  value, gradient = jax.value_and_grad(loss)(logits)
  assert value == pytest.approx(-np.log(3 / 10), rel=1e-5)
  # p(span|x), less 1 for the best one: the other correct ones are pushed down.
  assert gradient.ravel() == pytest.approx(
    np.array([0.1, 0.2, 0.3 - 1, 0.4]), rel=1e-4
  )


def test_the_best_span_is_one_that_exists():
  scores = jnp.zeros((1, 1))
  logits = jnp.array([[[[9.0], [0.0], [1.0]]]])
  is_span = jnp.array([[[[False], [True], [True]]]])
  is_answer = jnp.array([[[[True], [False], [True]]]])
  _, metrics = _loss(scores, jnp.ones((1, 1), bool), logits, is_span, is_answer)
  assert metrics["span_accuracy"] == 1.0
  assert metrics["reader_loss"] == pytest.approx(np.log1p(np.exp(-1)), rel=1e-5)


def _gradients(example):
  scores, has_answer, logits, is_span, is_answer = example

  def loss(scores, logits):
    return _loss(scores, has_answer, logits, is_span, is_answer)[0]

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(scores, logits)


def test_a_question_with_nothing_correct_teaches_nothing():
  _, (to_scores, to_logits) = _gradients(example(0))
  assert np.isfinite(to_scores).all() and np.isfinite(to_logits).all()
  assert not np.any(to_scores[-1])
  assert not np.any(to_logits[-1])
  # The question before has something for the retriever only.
  assert np.any(to_scores[-2])
  assert not np.any(to_logits[-2])


def test_blocks_without_any_span_are_not_a_nan():
  scores, has_answer, logits, is_span, is_answer = example(1)
  is_span = is_span.copy()
  is_span[:1] = False
  value, (to_scores, to_logits) = _gradients(
    (scores, has_answer, logits, is_span, is_answer)
  )
  assert np.isfinite(value)
  assert np.isfinite(to_scores).all() and np.isfinite(to_logits).all()
  assert not np.any(to_logits[:1])
