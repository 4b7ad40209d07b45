"""Ranking losses and distillation, against loops in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.errors import RealmError
from realm_jax.models.components import Components
from realm_jax.objectives.contrastive import BlockHashes
from realm_jax.objectives.ranking import DISTILLATIONS, RANKINGS
from realm_jax.training.stages.contrastive import Contrastive, ContrastiveBatch
from realm_jax.training.stages.reranking import Distilled
from tests.training import tiny

RNG = np.random.default_rng(0)
SCORES, TEACHER = RNG.normal(size=(2, 4, 3))
# One query has no other block.
IS_BLOCK = np.array(
  [[True, True, True], [True, False, True], [True, False, False], [True] * 3]
)


def _softmax(values):
  powers = np.exp(values)
  return powers / powers.sum()


def _by_hand(name, scores, teacher):
  own, others = scores[0], scores[1:]
  if name == "listwise":
    return -np.log(_softmax(scores)[0])
  if name == "binary":
    signed = [own, *-others]
    return np.mean([np.log1p(np.exp(-value)) for value in signed])
  if name == "kl":
    target, distribution = _softmax(teacher), _softmax(scores)
    return np.sum(target * np.log(target / distribution))
  if not len(others):
    return 0.0
  if name == "pairwise":
    return np.mean(np.log1p(np.exp(others - own)))
  margins = (teacher[0] - teacher[1:]) - (own - others)
  return np.mean(margins**2)


@pytest.mark.parametrize("name", [*RANKINGS, *DISTILLATIONS])
def test_equals_a_loop(name):
  scores, teacher, is_block = map(jnp.asarray, (SCORES, TEACHER, IS_BLOCK))
  if name in RANKINGS:
    losses = RANKINGS[name](scores, is_block)
  else:
    losses = DISTILLATIONS[name](teacher, scores, is_block)
  expected = [
    _by_hand(name, s[b], t[b])
    for s, t, b in zip(SCORES, TEACHER, IS_BLOCK, strict=True)
  ]
  np.testing.assert_allclose(losses, expected, rtol=2e-5, atol=1e-6)


def test_margins_that_are_given_are_learnt_as_by_sentence_transformers():
  rng = np.random.default_rng(0)
  queries, blocks = rng.normal(size=(4, 3)), rng.normal(size=(4, 2, 3))
  margins = rng.normal(size=(4, 1))
  # A third block was mined, and has no score.
  blocks = np.concatenate([blocks, np.ones((4, 1, 3))], axis=1)
  words = np.arange(24, dtype=np.uint32).reshape(4, 3, 2)
  batch = ContrastiveBatch(
    np.ones((4, 2), np.int32),
    np.ones((4, 3, 2), np.int32),
    BlockHashes(words, words[:, :1], np.ones((4, 3), bool)),
    negative_scores=np.float32(-margins),
  )
  stage = Distilled(
    teacher="task",
    distillation="margin_mse",
    num_negatives=1,
    num_hard_negatives=1,
  )
  assert "reranker" not in stage.components
  retriever = Components({"retriever": tiny.components().retriever})
  vectors = jnp.asarray(queries), jnp.asarray(blocks)
  means = stage.compare(retriever, vectors, batch).means()
  # MarginMSELoss of sentence-transformers 3.1.1, in float64.
  assert float(means["distillation"]) == pytest.approx(2.37092481, rel=1e-5)
  plain = Contrastive(num_negatives=1, num_hard_negatives=1)
  rest = plain.compare(retriever, vectors, batch).means()["loss"]
  assert float(means["loss"] - rest) == pytest.approx(2.37092481, rel=1e-4)


def test_a_task_that_gives_no_negatives_is_no_teacher():
  with pytest.raises(RealmError, match="raise NUM_NEGATIVES=0"):
    Distilled(teacher="task", num_hard_negatives=3)
