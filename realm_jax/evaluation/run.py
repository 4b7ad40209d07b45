"""Runs the evaluation that a configuration chooses."""

from collections.abc import Callable
from typing import Any


def evaluate(*, evaluation: Callable[[], dict[str, Any]]) -> dict[str, Any]:
  """Calls `evaluation`: one of this package's, or another with its figures.

  Args:
    evaluation: takes no further arguments and returns figures by name.
  """
  return evaluation()
