"""The figures of rows, over seeds and compared with REALM, and their report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from realm_jax.ablation.plan import Plan, RowResult
from realm_jax.ablation.rows import REALM, Row
from realm_jax.console import columns, plot
from realm_jax.evaluation import resampling
from realm_jax.evaluation.compare import paired_scores
from realm_jax.storage.atomic import atomic_text_file


class Metric(NamedTuple):
  """A figure of a row.

  Attributes:
    name: Its name in JSON.
    title: Its name in tables.
    result: Name of the evaluation that has it, a field of `RowResult`.
    file: File of that evaluation.
    score: Name of the score of each question.
  """

  name: str
  title: str
  result: str
  file: str
  score: str


EXACT_MATCH = Metric(
  "exact_match", "EM", "answers", "predictions.jsonl", "exact_match"
)
RECALL = Metric(
  "recall_at_5",
  "zero-shot recall@5",
  "zero_shot",
  "retrieved.jsonl",
  "recall_at_5",
)
# Answers found by their characters, as in the paper.
RECALL_CHARACTERS = RECALL._replace(
  name="recall_characters_at_5",
  title="the same by characters",
  score="recall_characters_at_5",
)
SENTENCE_RECALL = RECALL._replace(
  name="sentence_recall_at_5",
  title="recall@5 of sentences",
  result="sentences",
)
METRICS = (EXACT_MATCH, RECALL, RECALL_CHARACTERS, SENTENCE_RECALL)
SHOWN = (EXACT_MATCH, RECALL, SENTENCE_RECALL)

REPORT = "ablation.md"
_TITLES = {
  "table2": "The rows of the paper's Table 2",
  "choices": "Choices beyond the paper's table",
  "candidates": "Number of candidates, the null document included",
  "refresh": "Steps between refreshes of the index",
}
_SWEEPS = ("candidates", "refresh")

_Row = Mapping[str, Any]
# The scores of a row and of REALM, one array for each seed.
_Seeds = Sequence[Float[np.ndarray, "_"]]


def figures_of(plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
  """Returns the figures of all rows, as JSON.

  Returns:
    `rows`, and for each row its `name`, `title`, `part`, `setting`, what is
    `published`, and `metrics` as `row_figures` makes them.

  Raises:
    ComparisonError: A file of an evaluation is missing, or has other questions
      than REALM's.
  """
  found = []
  for row in rows:
    title = row.title
    if row.name in plan.never_refreshed:
      title += " (never refreshed)"
    metrics = {}
    for metric in METRICS:
      here, there = (
        _files(plan.results[name], metric) for name in (row.name, REALM.name)
      )
      if not here:
        continue
      pairs = [paired_scores(*files) for files in zip(there, here, strict=True)]
      metrics[metric.name] = row_figures(
        [second[metric.score] for _, second in pairs],
        [first[metric.score] for first, _ in pairs],
      )
    found.append(
      {
        "name": row.name,
        "title": title,
        "part": row.part,
        "setting": row.setting,
        "published": row.published and vars(row.published),
        "metrics": metrics,
      }
    )
  return {"rows": found}


def row_figures(scores: _Seeds, realm: _Seeds) -> dict[str, Any]:
  """Returns the figures of a row, given each question's score.

  Args:
    scores: Scores of the row, by seed.
    realm: Those of REALM on the same questions, by seed.

  Returns:
    `by_seed`, the mean of each seed; `mean` and `standard_deviation` of these,
    the latter with one degree of freedom less, and None for one seed;
    `interval`, the 95 % bootstrap interval of the mean, over questions within
    seeds. Against REALM: `difference`, its `difference_interval`; `p_value`, of
    a paired randomization test over the questions of all seeds; and
    `seeds_better`, in how many seeds the row is better.
  """
  by_seed = [float(np.mean(of_seed)) for of_seed in scores]
  differences = [
    {"": row - other} for row, other in zip(scores, realm, strict=True)
  ]
  means = [float(np.mean(of_seed[""])) for of_seed in differences]
  deviation = float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else None
  return {
    "by_seed": by_seed,
    "mean": float(np.mean(by_seed)),
    "standard_deviation": deviation,
    "interval": resampling.bootstrap_intervals(
      *({"": of_seed} for of_seed in scores)
    )[""],
    "difference": float(np.mean(means)),
    "difference_interval": resampling.bootstrap_intervals(*differences)[""],
    "p_value": resampling.permutation_p_values(*differences)[""],
    "seeds_better": sum(mean > 0 for mean in means),
  }


def _files(results: Sequence[RowResult], metric: Metric) -> list[Path]:
  folders: list[Path | None] = [getattr(r, metric.result) for r in results]
  return [folder / metric.file for folder in folders if folder is not None]


def metric_of(row: Mapping[str, Any], metric: Metric) -> dict[str, Any] | None:
  """Returns a metric of a row of `figures_of`, if it has it."""
  return row["metrics"].get(metric.name)


def write_report(output_dir: Path, figures: Mapping[str, Any]) -> str:
  """Writes ablation.md and the plots, and returns tables for a terminal.

  `figures` are those of `figures_of`, with the `seeds` and the `commit`.
  """
  rows, seeds = figures["rows"], figures["seeds"]
  metrics = [m for m in SHOWN if m.name in rows[0]["metrics"]]
  plots = _write_plots(output_dir, rows)
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


def _write_plots(output_dir: Path, rows: Sequence[_Row]) -> dict[str, str]:
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


def plan_table(plan: Plan) -> str:
  """Returns the runs of a plan, their states, and the rows that share them."""
  names = [f"seed-{run.seed}/{run.name}" for run in plan.runs]
  width = max(map(len, names))
  lines = []
  for name, run in zip(names, plan.runs, strict=True):
    state = "begun" if run.step.folder.exists() else "to do"
    if run.step.is_finished():
      state = "finished"
    lines.append(f"{name:<{width}}  {state:<8}  {', '.join(run.rows)}")
  return "\n".join(lines)
