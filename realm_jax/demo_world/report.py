"""The demo's report: a table, JSON, Markdown and plots."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What is plotted: file, title, and of which run which metric.
_PLOTS = (
  (
    "loss.png",
    "Loss (nats)",
    (
      ("inverse_cloze", "loss"),
      ("reading", "loss"),
      ("realm", "loss"),
      ("open_qa", "loss"),
    ),
  ),
  (
    "retrieval_utility.png",
    "Retrieval utility, log p(y|x) − log p(y|null, x) (nats)",
    (("realm", "retrieval_utility"),),
  ),
  (
    "recall.png",
    "Share of queries with the answer among what was retrieved",
    (
      ("realm", "recall"),
      ("open_qa", "recall_at_5"),
      ("ict_only", "recall_at_5"),
      ("bm25", "recall_at_5"),
    ),
  ),
  (
    "staleness.png",
    "Staleness of the index (steps)",
    (("realm", "staleness_steps"),),
  ),
)
_SMOOTHING = 0.1


def rows(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """What was measured, its figure, and what it is compared with."""

  def answers(name: str) -> str:
    of = figures[name]
    return f"EM {of['exact_match']:.3f}   recall@5 {of['recall_at_5']:.3f}"

  masked, edited = figures["masked_accuracy"], figures["edited_facts"]
  return [
    ("REALM", answers("realm"), "test questions"),
    ("same reader, random blocks", answers("random_blocks"), "control"),
    ("BM25, reader trained on it", answers("bm25"), "control"),
    ("inverse cloze, no REALM", answers("ict_only"), "control"),
    (
      "masked names, with retrieval",
      f"accuracy {masked['with_retrieval']:.3f}",
      "pre-training",
    ),
    (
      "masked names, null block alone",
      f"accuracy {masked['null_only']:.3f}",
      "control",
    ),
    (
      "facts edited in the corpus",
      f"{edited['followed']} of {edited['total']} answers follow",
      "nothing trained",
    ),
    (
      "generations swapped in",
      str(figures["generations_swapped"]),
      "pre-training",
    ),
    ("wall time", f"{figures['wall_seconds']:.0f} s", ""),
  ]


def table(figures: Mapping[str, Any]) -> str:
  """The report for a terminal."""
  lines = rows(figures)
  widths = [max(len(line[i]) for line in lines) for i in range(2)]
  return "\n".join(
    f"{name:<{widths[0]}}   {figure:<{widths[1]}}   {remark}".rstrip()
    for name, figure, remark in lines
  )


def write(output_dir: Path, figures: Mapping[str, Any]) -> str:
  """Writes report.json, report.md and the plots; returns the table.

  Args:
    output_dir: of the demo, with its runs' metrics.jsonl.
    figures: what `demo.tell` returns.
  """
  (output_dir / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
  body = "\n".join(f"| {' | '.join(line)} |" for line in rows(figures))
  plots = "\n\n".join(f"![{title}]({name})" for name, title, _ in _PLOTS)
  (output_dir / "report.md").write_text(
    "# The demo's report\n\n| what | figure | |\n| --- | --- | --- |\n"
    f"{body}\n\n{plots}\n"
  )
  for name, title, curves in _PLOTS:
    _plot(output_dir, name=name, title=title, curves=curves)
  return f"\n{table(figures)}\n\nreport: {output_dir / 'report.md'}"


def _plot(
  output_dir: Path,
  *,
  name: str,
  title: str,
  curves: Sequence[tuple[str, str]],
) -> None:
  import matplotlib  # An extra: only the demo plots.

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(figsize=(8, 4.5))
  for run, metric in curves:
    lines = (output_dir / run / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    steps = [point["step"] for point in points if metric in point]
    values = [point[metric] for point in points if metric in point]
    if metric == "staleness_steps":
      axes.plot(steps, values, label=run)
      continue
    (line,) = axes.plot(steps, values, alpha=0.2)
    axes.plot(steps, _smooth(values), color=line.get_color(), label=run)
  axes.set_xlabel("step")
  axes.set_title(title)
  axes.grid(alpha=0.3)
  axes.legend()
  figure.tight_layout()
  figure.savefig(output_dir / name, dpi=120)
  plt.close(figure)


def _smooth(values: Sequence[float]) -> list[float]:
  smoothed, mean = [], None
  for value in values:
    mean = value if mean is None else mean + _SMOOTHING * (value - mean)
    smoothed.append(mean)
  return smoothed
