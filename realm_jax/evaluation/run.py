"""Runs the evaluation that a configuration chooses."""

from collections.abc import Callable

from realm_jax.evaluation.outputs import Figures


def evaluate(*, evaluation: Callable[[], Figures]) -> Figures:
  """Runs one of this package's evaluations, whose arguments gin has bound."""
  return evaluation()
