"""The report of an ablation: tables, JSON, Markdown and plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.ablation.figures import SHOWN, Metric, metric_of
from realm_jax.ablation.plots import write_plots
from realm_jax.ablation.rows import REALM
from realm_jax.ablation.runs import Plan
from realm_jax.console import columns
from realm_jax.storage.atomic import atomic_text_file

REPORT = "ablation.md"

_Row = Mapping[str, Any]


def write_report(output_dir: Path, figures: Mapping[str, Any]) -> str:
  """Writes ablation.md and the plots, and returns tables for a terminal.

  `figures` are those of `figures_of`, with the `seeds` and the `commit`.
  """
  rows, seeds = figures["rows"], figures["seeds"]
  metrics = [m for m in SHOWN if m.name in rows[0]["metrics"]]
  plots = write_plots(output_dir, rows)
  tables = [_cells(rows, metric) for metric in metrics]
  with atomic_text_file(output_dir / REPORT) as file:
    file.write(
      f"# Ablation\n\n{len(seeds)} seeds, commit {figures['commit']}. Each "
      "figure is the mean over the seeds, with their standard deviation. "
      "Differences are from REALM, with 95 % bootstrap intervals and the "
      "p-value of a paired randomization test, over the questions of all "
      "seeds.\n"
    )
    for metric, cells in zip(metrics, tables, strict=True):
      file.write(f"\n## {metric.title}\n\n{_markdown(cells)}\n")
    for name, title in plots.items():
      file.write(f"\n![{title}]({name})\n")
  shown = "\n\n".join(columns(cells) for cells in tables)
  return f"{shown}\n\nreport: {output_dir / REPORT}"


def _cells(rows: Sequence[_Row], metric: Metric) -> list[list[str]]:
  """Returns the cells of a metric's table, its header first."""
  header = [metric.title, "mean", "sd", "difference", "interval", "p", "better"]
  published = [_published(row, metric) for row in rows]
  if any(published):
    header.append("paper")
  cells = [header]
  for row, text in zip(rows, published, strict=True):
    figures = metric_of(row, metric)
    if figures is not None:
      tail = [text] if any(published) else []
      cells.append([row["title"], *_row_cells(row, figures), *tail])
  return cells


def _row_cells(row: _Row, figures: Mapping[str, Any]) -> list[str]:
  deviation = figures["standard_deviation"]
  shown = [
    f"{figures['mean']:.3f}",
    "" if deviation is None else f"{deviation:.3f}",
  ]
  if row["name"] == REALM.name:
    return [*shown, "", "", "", ""]
  low, high = figures["difference_interval"]
  return [
    *shown,
    f"{figures['difference']:+.3f}",
    f"[{low:+.3f}, {high:+.3f}]",
    f"{figures['p_value']:.4f}",
    f"{figures['seeds_better']} of {len(figures['by_seed'])}",
  ]


def _published(row: _Row, metric: Metric) -> str:
  value = (row["published"] or {}).get(metric.name)
  return "" if value is None else f"{value / 100:.3f}"


def _markdown(cells: Sequence[Sequence[str]]) -> str:
  header, *body = (f"| {' | '.join(row)} |" for row in cells)
  rule = "| --- |" + " ---: |" * (len(cells[0]) - 1)
  return "\n".join([header, rule, *body])


def plan_table(plan: Plan, states: Sequence[str]) -> str:
  """Returns the runs of a plan, their states, and the rows that share them."""
  names = [f"seed-{run.seed}/{run.name}" for run in plan.runs]
  width = max(map(len, names))
  return "\n".join(
    f"{name:<{width}}  {state:<8}  {', '.join(run.rows)}"
    for name, state, run in zip(names, states, plan.runs, strict=True)
  )
