"""Inverse cloze: values by hand, and a second implementation."""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.inverse_cloze import inverse_cloze_loss


def _vectors(n, d, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(2, n, d)).astype(np.float32)


def _loss(queries, blocks, removed, negatives, **settings):
  arrays = map(jnp.asarray, (queries, blocks, removed))
  weighted = inverse_cloze_loss(
    *arrays, negatives=jnp.asarray(negatives), **settings
  )
  return weighted.loss.mean, weighted.means()


def _by_hand(queries, blocks, scale, negatives):
  queries, blocks = queries.astype(np.float64), blocks.astype(np.float64)
  loss, hits = 0.0, []
  for i, query in enumerate(queries):
    others = [*blocks, *negatives[i]]
    scores = [scale * float(query @ block) for block in others]
    loss -= scores[i] - np.log(np.sum(np.exp(scores)))
    hits.append(max(range(len(scores)), key=scores.__getitem__) == i)
  return loss / len(queries), np.array(hits)


@pytest.mark.parametrize(("scale", "num_negatives"), [(1.0, 0), (4.0, 2)])
def test_equals_a_loop_in_numpy(scale, num_negatives):
  queries, blocks = _vectors(9, 5)
  # Those of a sentence are negatives of no other.
  negatives = _vectors(9 * num_negatives, 5, seed=1)[0].reshape(
    9, num_negatives, 5
  )
  removed = np.arange(9) % 3 != 0
  loss, metrics = _loss(queries, blocks, removed, negatives, score_scale=scale)
  expected, hits = _by_hand(queries, blocks, scale, negatives)
  assert loss == pytest.approx(expected, rel=1e-5)
  assert metrics["accuracy"] == pytest.approx(hits.mean())
  assert metrics["accuracy_removed"] == pytest.approx(hits[removed].mean())
  assert metrics["accuracy_kept"] == pytest.approx(hits[~removed].mean())
