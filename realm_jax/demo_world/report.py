"""The demo's report: a table, JSON, Markdown and plots."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.console.plots import plot
from realm_jax.files.metric_rows import read_rows

# Each plot's file: its title, and its curves as RUN/METRIC.
_PLOTS = {
  "loss.png": (
    "Loss (nats)",
    ["inverse_cloze/loss", "reading/loss", "realm/loss", "open_qa/loss"],
  ),
  "retrieval_utility.png": (
    "Retrieval utility, log p(y|x) − log p(y|null, x) (nats)",
    ["realm/retrieval_utility"],
  ),
  "recall.png": (
    "Share of queries with the answer in a retrieved block",
    [
      "realm/recall",
      "open_qa/recall_at_5",
      "ict_only/recall_at_5",
      "bm25/recall_at_5",
    ],
  ),
  "staleness.png": (
    "Staleness of the index (steps)",
    ["realm/staleness_steps"],
  ),
}
_SMOOTHING = 0.1


def write(output_dir: Path, figures: Mapping[str, Any]) -> str:
  """Writes report.json, report.md and the plots, and returns the table.

  The directory holds the metrics of the demo's runs, and `demo.run_demo`
  returns the figures.
  """
  (output_dir / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
  rows = _rows(figures)
  body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
  plots = "\n\n".join(
    f"![{title}]({name})" for name, (title, _) in _PLOTS.items()
  )
  (output_dir / "report.md").write_text(
    "# The demo's report\n\n| what | figure | |\n| --- | --- | --- |\n"
    f"{body}\n\n{plots}\n"
  )
  for name, (title, curves) in _PLOTS.items():
    _plot(output_dir, name=name, title=title, curves=curves)
  widths = [max(len(row[i]) for row in rows) for i in range(2)]
  table = "\n".join(
    f"{name:<{widths[0]}}   {figure:<{widths[1]}}   {remark}".rstrip()
    for name, figure, remark in rows
  )
  return f"\n{table}\n\nreport: {output_dir / 'report.md'}"


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """Returns what was measured, its figure, and a remark, for each row."""

  def open_qa(name: str) -> str:
    of_run = figures[name]
    return (
      f"EM {of_run['exact_match']:.3f}   recall@5 {of_run['recall_at_5']:.3f}"
    )

  masked, edited = figures["masked_accuracy"], figures["edited_facts"]
  with_retrieval = f"accuracy {masked['with_retrieval']:.3f}"
  null_only = f"accuracy {masked['null_only']:.3f}"
  followed = f"{edited['followed']} of {edited['total']} answers follow"
  swapped = str(figures["generations_swapped"])
  return [
    ("REALM", open_qa("realm"), "test questions"),
    ("same reader, random blocks", open_qa("random_blocks"), "control"),
    ("BM25, reader trained on it", open_qa("bm25"), "control"),
    ("inverse cloze, no REALM", open_qa("ict_only"), "control"),
    ("masked names, with retrieval", with_retrieval, "pre-training"),
    ("masked names, null block alone", null_only, "control"),
    ("facts edited in the corpus", followed, "nothing trained"),
    ("generations swapped in", swapped, "pre-training"),
    ("wall time", f"{figures['wall_seconds']:.0f} s", ""),
  ]


def _plot(
  output_dir: Path, *, name: str, title: str, curves: Sequence[str]
) -> None:
  with plot(output_dir / name, title=title) as (axes,):
    for curve in curves:
      run, metric = curve.split("/")
      points = [row for row in read_rows(output_dir / run) if metric in row]
      steps = [point["step"] for point in points]
      values = [point[metric] for point in points]
      if metric == "staleness_steps":
        axes.plot(steps, values, label=run)
        continue
      (line,) = axes.plot(steps, values, alpha=0.2)
      axes.plot(steps, _smooth(values), color=line.get_color(), label=run)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.legend()


def _smooth(values: Sequence[float]) -> list[float]:
  """Returns the exponential moving average."""
  return list(
    itertools.accumulate(
      values, lambda mean, value: mean + _SMOOTHING * (value - mean)
    )
  )
