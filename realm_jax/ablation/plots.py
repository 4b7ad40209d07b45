"""A plot for each question that the rows answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.ablation.figures import EXACT_MATCH, SHOWN, Metric, metric_of
from realm_jax.ablation.rows import REALM
from realm_jax.console import plot

_TITLES = {
  "table2": "The rows of the paper's Table 2",
  "choices": "Choices beyond the paper's table",
  "candidates": "Number of candidates, the null document included",
  "refresh": "Steps between refreshes of the index",
}
_SWEEPS = ("candidates", "refresh")

_Row = Mapping[str, Any]


def write_plots(output_dir: Path, rows: Sequence[_Row]) -> dict[str, str]:
  """Writes the plots of the parts that have rows beside REALM.

  Returns:
    The title of each file's plot.
  """
  written = {}
  for part, title in _TITLES.items():
    own = [row for row in rows if row["part"] == part]
    if part not in _SWEEPS and REALM.name not in [r["name"] for r in own]:
      own = [row for row in rows if row["name"] == REALM.name] + own
    if all(row["name"] == REALM.name for row in own):
      continue
    metrics = [m for m in SHOWN if m.name in own[0]["metrics"]]
    name = f"{part}.png"
    height = 4.5 if part in _SWEEPS else 1.5 + 0.5 * len(own)
    draw = _draw_sweep if part in _SWEEPS else _draw_bars
    with plot(
      output_dir / name,
      title=f"{title} (orange: 95 % intervals; dots: seeds)",
      num_panels=len(metrics),
      height=height,
    ) as panels:
      for axes, metric in zip(panels, metrics, strict=True):
        draw(axes, own, metric)
      if draw is _draw_bars:
        for axes in panels[1:]:
          axes.tick_params(labelleft=False)
    written[name] = title
  return written


def _draw_bars(axes: Any, rows: Sequence[_Row], metric: Metric) -> None:
  """Draws a bar for each row, the first at the top, and a dot for each seed."""
  found = [metric_of(row, metric) for row in rows]
  for place, figures in enumerate(found):
    if figures is None:
      continue
    axes.barh(place, figures["mean"], color="tab:blue", alpha=0.6)
    _draw_interval(axes, figures, place, across=True)
    by_seed = figures["by_seed"]
    axes.plot(by_seed, [place] * len(by_seed), ".", color="black", zorder=3)
  axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
  axes.invert_yaxis()
  _finish(axes, metric, across=True)


def _draw_sweep(axes: Any, rows: Sequence[_Row], metric: Metric) -> None:
  """Draws the means of a sweep's rows, from left to right."""
  found = [metric_of(row, metric) for row in rows]
  means = [None if f is None else f["mean"] for f in found]
  axes.plot(range(len(rows)), means, "o-", color="tab:blue")
  for place, figures in enumerate(found):
    if figures is not None:
      _draw_interval(axes, figures, place, across=False)
      by_seed = figures["by_seed"]
      axes.plot([place] * len(by_seed), by_seed, ".", color="black", zorder=3)
  axes.set_xticks(range(len(rows)), [row["setting"] for row in rows])
  _finish(axes, metric, across=False)


def _draw_interval(
  axes: Any, figures: Mapping[str, Any], place: int, *, across: bool
) -> None:
  """Draws the interval of the mean over questions, across or upright."""
  low, high = figures["interval"]
  places = [place, place]
  line = ([low, high], places) if across else (places, [low, high])
  axes.plot(*line, "-", color="tab:orange", linewidth=3, zorder=2)


def _finish(axes: Any, metric: Metric, *, across: bool) -> None:
  title = "exact match" if metric is EXACT_MATCH else metric.title
  if across:
    axes.set_xlabel(title)
    axes.set_xlim(left=0)
  else:
    axes.set_ylabel(title)
    axes.set_ylim(bottom=0)
  axes.grid(alpha=0.3)
