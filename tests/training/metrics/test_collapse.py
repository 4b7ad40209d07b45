"""The monitor speaks in a collapse, and only then."""

import numpy as np
import pytest

from realm_jax.training.metrics.collapse import CollapseMonitor


def _feed(monitor, steps, utility, recall, entropy, seed=0):
  """The warnings of so many steps; each argument is a function of the step."""
  rng = np.random.default_rng(seed)
  warnings = []
  for step in range(steps):
    warning = monitor.update(
      step + 1,
      {
        "loss": 1.0,
        "retrieval_utility": utility(step) + rng.normal(0, 0.02),
        "recall": recall(step) + rng.normal(0, 0.03),
        "candidate_entropy": entropy(step) + rng.normal(0, 0.03),
      },
    )
    if warning:
      warnings.append((step, warning))
  return warnings


def _steady(value):
  return lambda step: value


def _falling(high, low, over):
  return lambda step: high + (low - high) * min(1.0, step / over)


@pytest.mark.parametrize(
  ("recall", "entropy", "named"),
  [
    (_falling(0.97, 0.03, 250), _steady(1.8), "recall fell from 0.9"),
    (_steady(0.9), _falling(1.9, 0.05, 250), "candidate_entropy fell from 1."),
  ],
)
def test_a_collapse_is_named_before_it_is_complete(recall, entropy, named):
  warnings = _feed(CollapseMonitor(), 300, _steady(0.0), recall, entropy)
  step, text = warnings[0]
  assert 60 < step < 200
  assert named in text
  assert "FREEZE_RETRIEVER_STEPS" in text
