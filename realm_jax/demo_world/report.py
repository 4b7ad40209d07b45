"""The demo's report: a table, JSON, Markdown and plots."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

# Each plot's file, title, and curves: run and metric.
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
    "Share of queries with the answer in a retrieved block",
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


class OpenQaFigures(TypedDict):
  """Figures of one evaluation of open QA."""

  exact_match: float
  recall_at_5: float


class MaskedAccuracy(TypedDict):
  """Accuracy on masked names, with retrieval and with the null block alone."""

  with_retrieval: float
  null_only: float


class EditedFacts(TypedDict):
  """Number of edited facts that answers follow, of how many."""

  followed: int
  total: int


class DemoFigures(TypedDict):
  """Contents of report.json."""

  realm: OpenQaFigures
  random_blocks: OpenQaFigures
  bm25: OpenQaFigures
  ict_only: OpenQaFigures
  masked_accuracy: MaskedAccuracy
  edited_facts: EditedFacts
  generations_swapped: int
  wall_seconds: float


def _open_qa(figures: OpenQaFigures) -> str:
  return (
    f"EM {figures['exact_match']:.3f}   recall@5 {figures['recall_at_5']:.3f}"
  )


def rows(figures: DemoFigures) -> list[tuple[str, str, str]]:
  """Returns what was measured, its figure, and a remark, for each row."""
  masked, edited = figures["masked_accuracy"], figures["edited_facts"]
  return [
    ("REALM", _open_qa(figures["realm"]), "test questions"),
    (
      "same reader, random blocks",
      _open_qa(figures["random_blocks"]),
      "control",
    ),
    ("BM25, reader trained on it", _open_qa(figures["bm25"]), "control"),
    ("inverse cloze, no REALM", _open_qa(figures["ict_only"]), "control"),
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


def table(figures: DemoFigures) -> str:
  """Returns the report for a terminal."""
  lines = rows(figures)
  widths = [max(len(line[i]) for line in lines) for i in range(2)]
  return "\n".join(
    f"{name:<{widths[0]}}   {figure:<{widths[1]}}   {remark}".rstrip()
    for name, figure, remark in lines
  )


def write(output_dir: Path, figures: DemoFigures) -> str:
  """Writes report.json, report.md and the plots, and returns the table.

  Args:
    output_dir: Directory of the demo, with the metrics.jsonl of its runs.
    figures: Figures that `demo.run_demo` returns.
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
  import matplotlib  # Installed by the `demo` extra.

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
  """Returns the exponential moving average."""
  smoothed: list[float] = []
  for value in values:
    mean = smoothed[-1] if smoothed else value
    smoothed.append(mean + _SMOOTHING * (value - mean))
  return smoothed
