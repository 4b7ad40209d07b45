"""Figures as tables for a terminal."""

from collections.abc import Mapping, Sequence


def figures_table(figures: Mapping[str, object]) -> str:
  """Returns a line for each figure, in two aligned columns."""
  width = max(map(len, figures))
  return "\n".join(
    f"{name:<{width}}  {_text(value)}" for name, value in figures.items()
  )


def columns(rows: Sequence[Sequence[object]]) -> str:
  """Returns rows of equal length as aligned columns, the first to the left."""
  texts = [[_text(value) for value in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
  return "\n".join(
    "  ".join(
      cell.rjust(width) if place else cell.ljust(width)
      for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in texts
  )


def _text(value: object) -> str:
  return f"{value:.4f}" if isinstance(value, float) else str(value)
