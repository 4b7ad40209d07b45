"""Plots that a command writes as PNG; matplotlib is in the extra `demo`."""

import contextlib
from collections.abc import Iterator
from typing import Any

from etils import epath


@contextlib.contextmanager
def plot(
  path: epath.PathLike, *, title: str, num_panels: int = 1, height: float = 4.5
) -> Iterator[list[Any]]:
  """Yields the axes of panels side by side, and writes them after the block.

  Args:
    path: File to write.
    title: Title above all panels.
    num_panels: Number of axes.
    height: Height in inches; the width is 8 inches, or 6 a panel.

  Raises:
    ImportError: matplotlib is not installed.
  """
  import matplotlib  # Takes a second, which other commands need not spend.

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  width = 8 if num_panels == 1 else 6 * num_panels
  figure, axes = plt.subplots(
    1, num_panels, figsize=(width, height), squeeze=False
  )
  try:
    yield list(axes[0])
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
  finally:
    plt.close(figure)
