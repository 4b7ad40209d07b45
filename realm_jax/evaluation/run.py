"""Runs the evaluation that a configuration chooses."""

from collections.abc import Callable

from realm_jax.evaluation.outputs import Figures


def evaluate(*, evaluation: Callable[[], Figures]) -> Figures:
  """Runs an evaluation and returns its figures.

  Args:
    evaluation: Function without arguments, such as one of this package with
      its arguments bound, that returns figures by name.
  """
  return evaluation()
