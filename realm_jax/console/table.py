"""Figures as a table for a terminal."""

from collections.abc import Mapping


def figures_table(figures: Mapping[str, object]) -> str:
  """Returns a line for each figure, in two aligned columns."""
  width = max(map(len, figures))
  return "\n".join(
    f"{name:<{width}}  {_text(value)}" for name, value in figures.items()
  )


def _text(value: object) -> str:
  return f"{value:.4f}" if isinstance(value, float) else str(value)
