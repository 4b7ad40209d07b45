"""Metrics of a step that retrieves are those of the host's path."""

import jax.numpy as jnp
import numpy as np

from realm_jax.training.batches import MaskTargets
from realm_jax.training.device_retrieval import step
from realm_jax.training.stages import pretraining


def test_recall_is_that_of_the_host():
  rng = np.random.default_rng(0)
  batch, blocks, length, masks = 64, 3, 9, 4
  tokens = rng.integers(1, 4, (batch, blocks, length)).astype(np.int32)
  tokens[:, :, 6:] = 0
  # From no masks to four, the last of which could only match padding.
  sizes = rng.integers(0, masks + 1, (batch, 1))
  weights = (np.arange(masks) < sizes).astype(np.float32)
  targets = rng.integers(1, 4, (batch, masks)) * (weights > 0)
  given = MaskTargets(
    np.zeros((batch, masks), np.int32), targets.astype(np.int32), weights
  )
  expected = pretraining.masked_recall(given, tokens)
  assert 0.2 < expected < 0.8
  found = step.masked_recall(given, jnp.asarray(tokens))
  assert float(found) == np.float32(expected)
