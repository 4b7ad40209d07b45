"""Draws the roofline of a chip with the estimates of `realm_jax.precompile`.

    python -m benchmarks.roofline --output=docs/images/roofline.png \\
      --estimate='plain attention=plain.json' --estimate='fused=fused.json'

A point is one training step: its useful arithmetic for each byte of memory
traffic, and the rate at which the estimated step does that arithmetic. The line
is what the chip allows: its bandwidth on the left, its peak on the right.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from realm_jax.precompilation.chips import CHIPS, Chip

_INTENSITIES = (20.0, 3000.0)


class Point(NamedTuple):
  """A training step in the roofline.

  Attributes:
    label: Name of the step.
    intensity: Useful floating-point operations for each byte of traffic.
    rate: Useful floating-point operations in a second.
  """

  label: str
  intensity: float
  rate: float


def point_of(label: str, estimate: Mapping[str, Any]) -> Point:
  """Returns the point of a step, from the JSON that `precompile` writes."""
  useful = estimate["useful_flops_per_chip"]
  return Point(
    label,
    useful / estimate["hbm_bytes"],
    useful / estimate["estimated_step_seconds"],
  )


def draw(chip: Chip, points: Sequence[Point], output: Path) -> None:
  """Writes the picture of a chip's roofline with the steps on it."""
  figure, axes = plt.subplots(figsize=(7, 4.2))
  ridge = chip.peak_flops / chip.memory_bandwidth
  xs = [_INTENSITIES[0], ridge, _INTENSITIES[1]]
  ys = [min(x * chip.memory_bandwidth, chip.peak_flops) / 1e12 for x in xs]
  axes.plot(xs, ys, color="black", linewidth=1.5)
  axes.annotate(
    f"{chip.peak_flops / 1e12:.0f} TFLOP/s",
    (xs[2], ys[2]),
    xytext=(-4, 5),
    textcoords="offset points",
    ha="right",
  )
  axes.annotate(
    f"{chip.memory_bandwidth / 1e9:.0f} GB/s",
    (xs[0], ys[0]),
    xytext=(14, 2),
    textcoords="offset points",
  )
  for number, point in enumerate(points):
    rate = point.rate / 1e12
    axes.scatter([point.intensity], [rate], color=f"C{number}", zorder=3)
    axes.annotate(
      f"{point.label}: {rate:.0f} TFLOP/s",
      (point.intensity, rate),
      xytext=(0, -16),
      textcoords="offset points",
      ha="center",
      color=f"C{number}",
    )
  axes.set_xscale("log")
  axes.set_yscale("log")
  axes.set_ylim(ys[0] / 1.3, ys[2] * 1.5)
  for axis, ticks in (
    (axes.xaxis, [20, 50, 100, 200, 500, 1000, 2000]),
    (axes.yaxis, [20, 50, 100, 200, 500, 1000]),
  ):
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:.0f}")
  axes.set_xlabel("useful FLOP for each byte of memory traffic")
  axes.set_ylabel("useful TFLOP/s of a chip")
  axes.set_title(f"Estimated training step on {chip.name}")
  axes.grid(visible=True, which="both", alpha=0.2)
  figure.tight_layout()
  output.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(output, dpi=120)
  plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
  """Draws the picture.

  Exits with a message if the estimates are of different chips.
  """
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--estimate",
    action="append",
    required=True,
    help="LABEL=FILE, a file that precompile has written; repeatable",
  )
  parser.add_argument("--output", type=Path, required=True, help="PNG to write")
  given = parser.parse_args(arguments)
  points, chips = [], set()
  for text in given.estimate:
    label, equals, file = text.rpartition("=")
    if not equals:
      parser.error(f"--estimate={text} has no label; write LABEL=FILE")
    estimate = json.loads(Path(file).read_text())
    chips.add(estimate["topology"].partition(":")[0])
    points.append(point_of(label, estimate))
  if len(chips) > 1:
    parser.error(f"the estimates are of different chips: {sorted(chips)}")
  draw(CHIPS[chips.pop()], points, given.output)


if __name__ == "__main__":
  main()
