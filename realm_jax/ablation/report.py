"""The figures of rows, over seeds and compared with REALM, and their report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from realm_jax.ablation.plan import Plan
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
    result: Name of the evaluation that has it, a field of a plan's results.
    file: File of that evaluation.
    score: Name of the score of each question.
  """

  name: str
  title: str
  result: str
  file: str
  score: str


EXACT_MATCH = Metric(
  "exact_match", "exact match", "answers", "predictions.jsonl", "exact_match"
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
# Of masked statements in a low-resource language, by where facts are stated.
STATEMENTS = tuple(
  Metric(f"{name}_{stated_in}", title, stated_in, "predictions.jsonl", score)
  for stated_in, where in (
    ("first", "stated in the high-resource language alone"),
    ("both", "stated in both languages"),
  )
  for name, title, score in (
    ("recall", f"recall@5, {where}", "recall_at_5"),
    ("accuracy", f"masked accuracy, {where}", "exact_match"),
  )
)
SHOWN = (EXACT_MATCH, RECALL, SENTENCE_RECALL, *STATEMENTS)
METRICS = (*SHOWN, RECALL_CHARACTERS)

REPORT = "ablation.md"
_TITLES = {
  "table2": "The rows of the paper's Table 2",
  "choices": "Choices beyond the paper's table",
  "candidates": "Number of candidates, the null document included",
  "refresh": "Steps between refreshes of the index",
  "cross_lingual": "Statements in the low-resource language",
}

_Row = Mapping[str, Any]
# The scores of a row and of REALM, one array for each seed.
_Seeds = Sequence[Float[np.ndarray, "_"]]


def figures_of(plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
  """Returns the figures of all rows, as JSON.

  Returns:
    `rows`, REALM's first, and for each row its `name`, `title`, `part`, what
    is `published`, and `metrics` as `row_figures` makes them.

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


def _files(results: Sequence[Any], metric: Metric) -> list[Path]:
  """Returns the files of a metric; none if the results are of other kinds."""
  folders = [getattr(result, metric.result, None) for result in results]
  return [folder / metric.file for folder in folders if folder is not None]


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
  cells = [[*header, "paper"]]
  for row in rows:
    figures = row["metrics"][metric.name]
    deviation = figures["standard_deviation"]
    low, high = figures["difference_interval"]
    compared = [
      f"{figures['difference']:+.3f}",
      f"[{low:+.3f}, {high:+.3f}]",
      f"{figures['p_value']:.4f}",
      f"{figures['seeds_better']} of {len(figures['by_seed'])}",
    ]
    paper = (row["published"] or {}).get(metric.name)
    cells.append(
      [
        row["title"],
        f"{figures['mean']:.3f}",
        "" if deviation is None else f"{deviation:.3f}",
        *([""] * len(compared) if row["name"] == REALM.name else compared),
        "" if paper is None else f"{paper / 100:.3f}",
      ]
    )
  return cells


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
  metrics = [m for m in SHOWN if m.name in rows[0]["metrics"]]
  for part, title in _TITLES.items():
    own = [row for row in rows if row["part"] == part or row is rows[0]]
    if len(own) == 1:
      continue
    with plot(
      output_dir / f"{part}.png",
      title=f"{title} (orange: 95 % intervals; dots: seeds)",
      num_panels=len(metrics),
      height=1.5 + 0.5 * len(own),
    ) as panels:
      for axes, metric in zip(panels, metrics, strict=True):
        _draw(axes, own, metric)
        axes.tick_params(labelleft=axes is panels[0])
    written[f"{part}.png"] = title
  return written


def _draw(axes: Any, rows: Sequence[_Row], metric: Metric) -> None:
  """Draws a bar for each row, the first at the top, and a dot for each seed."""
  for place, row in enumerate(rows):
    figures = row["metrics"][metric.name]
    seeds = figures["by_seed"]
    axes.barh(place, figures["mean"], color="tab:blue", alpha=0.6)
    axes.plot(figures["interval"], [place] * 2, color="tab:orange", lw=3)
    axes.plot(seeds, [place] * len(seeds), ".", color="black", zorder=3)
  axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
  axes.invert_yaxis()
  axes.set_xlabel(metric.title)
  axes.set_xlim(left=0)
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
