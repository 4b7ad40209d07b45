"""The loss of a served reader: that of what it has scored, and of no more."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from realm_jax.errors import RealmError
from realm_jax.models.packing import padded_inputs
from realm_jax.served_reader.scoring import ServedLanguageModel
from realm_jax.training.stages.served_reader import ScoredBatch, ServedReader
from realm_jax.training.stages.stage import Encoders
from tests.training import tiny

_MODEL = ServedLanguageModel("http://localhost:1/v1", "none")
_RNG = np.random.default_rng(0)
_SCORES = -3 * _RNG.random((tiny.BATCH, tiny.CANDIDATES), np.float32)


def _stage(objective: str = "replug") -> ServedReader:
  return ServedReader(_MODEL, tiny.CANDIDATES, objective=objective)


@functools.cache
def _given():
  params = tiny.parameters("pretraining")
  return {"retriever": params["retriever"]}, tiny.batch("pretraining")


@functools.partial(jax.jit, static_argnames="objective")
def _loss_and_gradient(objective, scores):
  params, batch = _given()
  stage, made = _stage(objective), tiny.components()
  scored = ScoredBatch(batch.query, batch.candidates, scores)

  def mean(params):
    inputs = padded_inputs(stage.inputs(made, scored))
    found = stage.loss(Encoders(made, params, {}), scored, inputs)
    return found.loss.mean, found.means()

  return jax.value_and_grad(mean, has_aux=True)(params)


def _relevance():
  """f(x, z) of the batch, in float64."""
  params, batch = _given()
  made = tiny.components()
  scored = ScoredBatch(batch.query, batch.candidates, _SCORES)
  inputs = padded_inputs(_stage().inputs(made, scored))
  found = jax.jit(lambda p: Encoders(made, p, {}).candidate_scores(inputs))
  return np.float64(found(params))


def _wanted(objective, relevance, scores):
  """The loss of one example, whose candidates all have a score."""
  prior, ell = log_softmax(relevance), np.float64(scores)
  if objective == "replug":
    target = log_softmax(np.exp(ell) / 0.1)
    divergence = np.exp(prior) @ (prior - target)
  else:
    target = log_softmax(ell)
    if objective == "leave_one_out":
      others = [np.delete(np.arange(len(ell)), z) for z in range(len(ell))]
      joint = prior + ell
      without = [logsumexp(joint[o]) - logsumexp(prior[o]) for o in others]
      target = log_softmax(-np.array(without))
    divergence = np.exp(target) @ (target - prior)
  return divergence - logsumexp(prior + ell)


@pytest.mark.parametrize("objective", ["replug", "perplexity", "leave_one_out"])
def test_a_candidate_without_a_score_is_as_if_it_were_not_there(objective):
  scores, relevance = _SCORES.copy(), _relevance()
  scores[0, 1] = scores[3, 0] = -np.inf
  # Nothing is learnt where fewer than two have one.
  scores[5, 1:] = scores[6] = -np.inf
  (found, metrics), gradient = _loss_and_gradient(objective, scores)
  wanted = []
  for f, own in zip(relevance, scores, strict=True):
    known = np.isfinite(own)
    if known.sum() > 1:
      wanted.append(_wanted(objective, f[known], own[known]))
  assert len(wanted) == tiny.BATCH - 2
  assert float(found) == pytest.approx(np.mean(wanted), rel=1e-5)
  assert all(np.isfinite(value) for value in metrics.values())
  leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]
  assert all(np.isfinite(leaf).all() for leaf in leaves)
  assert max(np.abs(leaf).max() for leaf in leaves) > 0
  # A batch that has none has a loss of 0.
  (found, _), gradient = _loss_and_gradient(
    objective, np.full_like(scores, -np.inf)
  )
  assert found == 0
  assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_choices_that_do_not_fit_are_refused():
  with pytest.raises(RealmError, match="'emdr2' needs more of a reader"):
    _stage("emdr2")
  with pytest.raises(RealmError, match="num_read=1"):
    ServedReader(_MODEL, 1)
  with pytest.raises(RealmError, match=r"lacks \{query\}"):
    ServedLanguageModel("http://localhost/v1", "none", prompt="Answer:")
