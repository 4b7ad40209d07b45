"""The figures of rows, over seeds and compared with REALM, and their report."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.ablation.plan import Metric, Plan, Results
from experiments.ablation.rows import REALM
from experiments.pipeline import Step, markdown
from realm_jax.console import columns, plot
from realm_jax.evaluation.compare import paired_scores
from realm_jax.evaluation.scores import (
  bootstrap_intervals,
  permutation_p_values,
)
from realm_jax.storage.atomic import atomic_text_file

REPORT = "ablation.md"
_STATEMENT_RECALL = "statement_recall_at_1"
# Row that has the retriever from which the others start.
START = "inverse_cloze"
# Share of the start's recall below which a run has collapsed.
_FALLEN = 0.6
_SIGNIFICANT = 0.01

_Row = Mapping[str, Any]
# The scores of a row and of REALM, one array for each seed.
_Seeds = Sequence[Float[np.ndarray, "_"]]


def figures_of(plan: Plan) -> dict[str, Any]:
  """Returns the figures of a plan's rows, as JSON.

  Returns:
    `rows`, REALM's first, and for each row its `name`, `title`, `part`, what
    is `published`, its `training`, and `metrics` as `row_figures` makes them,
    with `holm_p_value` over all rows, and whether the row `is_better` than its
    reference: by a p-value below 0.01 and in each of several seeds.

  Raises:
    ComparisonError: A file of an evaluation is missing, or has other questions
      than REALM's.
  """
  found: list[dict[str, Any]] = []
  for row in plan.rows:
    title, pretraining = row.title, plan.pretrainings.get(row.name)
    if pretraining is not None and pretraining.never_refreshed:
      title += " (never refreshed)"
    metrics = {}
    for metric in plan.metrics:
      here, there = (
        _files(plan.results[name], metric) for name in (row.name, row.reference)
      )
      if not here or not there:
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
        "published": {**row.published},
        "training": {**plan.training.get(row.name, {})},
        "metrics": metrics,
      }
    )
  _add_collapses(found)
  for metric in plan.metrics:
    compared = [
      row["metrics"][metric.name]
      for row in found
      if row["name"] != REALM and metric.name in row["metrics"]
    ]
    corrected = holm([figures["p_value"] for figures in compared])
    for figures, p_value in zip(compared, corrected, strict=True):
      num_seeds = len(figures["by_seed"])
      figures["holm_p_value"] = p_value
      figures["is_better"] = (
        p_value < _SIGNIFICANT and figures["seeds_better"] == num_seeds > 1
      )
  return {"rows": found}


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values corrected for their number (Holm 1979), in their order.

  The smallest of m is multiplied by m, the next by m − 1 and so on; none gets
  smaller than one before it.
  """
  corrected, least = [0.0] * len(p_values), 0.0
  for rank, place in enumerate(np.argsort(p_values, kind="stable")):
    least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
    corrected[place] = least
  return corrected


def num_collapsed(scores: Sequence[float], start: Sequence[float]) -> str:
  """Returns how many runs have collapsed, such as "1 of 3".

  A run has collapsed if its recall@1 of statements is less than 0.6 of what it
  started with. The trainer warns at the same share of the best candidates.

  Args:
    scores: Recall of each run.
    start: Recall of the retriever from which it started.
  """
  pairs = zip(scores, start, strict=True)
  fallen = sum(score < _FALLEN * before for score, before in pairs)
  return f"{fallen} of {len(scores)}"


def _add_collapses(rows: Sequence[_Row]) -> None:
  """Adds to the training of rows how many of their runs have collapsed."""
  recalls = {
    row["name"]: row["metrics"][_STATEMENT_RECALL]["by_seed"]
    for row in rows
    if _STATEMENT_RECALL in row["metrics"]
  }
  for row in rows:
    if row["training"] and {row["name"], START} <= recalls.keys():
      row["training"]["collapsed"] = num_collapsed(
        recalls[row["name"]], recalls[START]
      )


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
    "interval": bootstrap_intervals(*({"": one} for one in scores))[""],
    "difference": float(np.mean(means)),
    "difference_interval": bootstrap_intervals(*differences)[""],
    "p_value": permutation_p_values(*differences)[""],
    "seeds_better": sum(mean > 0 for mean in means),
  }


def _files(results: Sequence[Results], metric: Metric) -> list[Path]:
  """Returns the files of a metric; none if the results are of other kinds."""
  files = []
  for folder in (one.get(metric.result) for one in results):
    if folder is not None:
      # An evaluation of retrieval alone has no predictions.
      predictions = folder / "predictions.jsonl"
      found = predictions.exists()
      files.append(predictions if found else folder / "retrieved.jsonl")
  return files


def write_report(
  output_dir: Path, metrics: Sequence[Metric], figures: Mapping[str, Any]
) -> str:
  """Writes ablation.md and the plots, and returns tables for a terminal.

  `figures` are those of `figures_of`, with the `seeds` and the `commit`.
  """
  rows, seeds = figures["rows"], figures["seeds"]
  metrics = [m for m in metrics if m.name in rows[0]["metrics"]]
  plots = _write_plots(output_dir, metrics, rows)
  tables = [_cells(rows, metric) for metric in metrics]
  with atomic_text_file(output_dir / REPORT) as file:
    file.write(
      f"# Ablation\n\n{len(seeds)} seeds, commit {figures['commit']}. Each "
      "figure is the mean over the seeds, with their standard deviation. "
      "Differences are from REALM, those of a stale index from the same "
      "objective's freshest, with 95 % bootstrap intervals and the p-value of "
      "a paired randomization test, over the questions of all seeds. A row is "
      "called better if its p-value is "
      f"below {_SIGNIFICANT} after Holm's correction over the rows of the "
      "table, and if it is better in every seed.\n"
    )
    if any(row["training"] for row in rows):
      file.write(f"\n## Training\n\n{markdown(_training_cells(rows))}\n")
    for metric, cells in zip(metrics, tables, strict=True):
      file.write(f"\n## {metric.title}\n\n{markdown(cells)}\n")
    for name, title in plots.items():
      file.write(f"\n![{title}]({name})\n")
  shown = "\n\n".join(columns(cells) for cells in tables)
  return f"{shown}\n\nreport: {output_dir / REPORT}"


def _training_cells(rows: Sequence[_Row]) -> list[list[str]]:
  """Returns the cells of the table of training, its header first."""
  names = list(dict.fromkeys(name for row in rows for name in row["training"]))
  cells = [["", *names]]
  for row in rows:
    values = [str(row["training"].get(name, "")) for name in names]
    cells.append([row["title"], *values])
  return cells


def _cells(rows: Sequence[_Row], metric: Metric) -> list[list[str]]:
  """Returns the cells of a metric's table, its header first."""
  header = [metric.title, "mean", "sd", "difference", "interval", "p", "Holm"]
  cells = [[*header, "seeds", "", "paper"]]
  for row in rows:
    figures = row["metrics"].get(metric.name)
    if figures is None:
      continue
    deviation = figures["standard_deviation"]
    low, high = figures["difference_interval"]
    compared = [
      f"{figures['difference']:+.3f}",
      f"[{low:+.3f}, {high:+.3f}]",
      f"{figures['p_value']:.4f}",
      f"{figures.get('holm_p_value', 1):.4f}",
      f"{figures['seeds_better']} of {len(figures['by_seed'])}",
      "better" if figures.get("is_better") else "",
    ]
    paper = row["published"].get(metric.name)
    cells.append(
      [
        row["title"],
        f"{figures['mean']:.3f}",
        "" if deviation is None else f"{deviation:.3f}",
        *([""] * len(compared) if row["name"] == REALM else compared),
        "" if paper is None else f"{paper / 100:.3f}",
      ]
    )
  return cells


def _write_plots(
  output_dir: Path, metrics: Sequence[Metric], rows: Sequence[_Row]
) -> dict[str, str]:
  """Writes the plots of the parts that have rows beside REALM.

  Each metric has a panel, with a bar for each row, the first at the top, and a
  dot for each seed.

  Returns:
    The title of each file's plot.
  """
  written = {}
  for part in dict.fromkeys(row["part"] for row in rows[1:]):
    title = part.replace("_", " ")
    own = [row for row in rows if row["part"] == part or row is rows[0]]
    shown = [
      metric
      for metric in metrics
      if any(metric.name in row["metrics"] for row in own[1:])
    ]
    if not shown:
      continue
    with plot(
      output_dir / f"{part}.png",
      title=f"{title} (orange: 95 % intervals; dots: seeds)",
      num_panels=len(shown),
      height=1.5 + 0.5 * len(own),
    ) as panels:
      for axes, metric in zip(panels, shown, strict=True):
        for place, row in enumerate(own):
          if figures := row["metrics"].get(metric.name):
            seeds = figures["by_seed"]
            axes.barh(place, figures["mean"], color="tab:blue", alpha=0.6)
            axes.plot(figures["interval"], [place] * 2, "tab:orange", lw=3)
            axes.plot(seeds, [place] * len(seeds), "k.", zorder=3)
        axes.set_yticks(range(len(own)), [row["title"] for row in own])
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.set_xlabel(metric.title)
        axes.set_xlim(left=0)
        is_first = axes.get_subplotspec().is_first_col()
        axes.tick_params(labelleft=is_first)
    written[f"{part}.png"] = title
  return written


def plan_table(plans: Iterable[Plan]) -> str:
  """Returns steps, their states, the rows that share them, and their number."""
  named: dict[str, tuple[Step, list[str]]] = {}
  for plan in plans:
    for folder, use in plan.uses.items():
      # A later plan finds what an earlier one has made.
      named.setdefault(str(folder.relative_to(plan.folder)), use)
  width = max(map(len, named))
  lines, num_finished = [], 0
  for name, (step, rows) in named.items():
    state = "begun" if step.folder.exists() else "to do"
    if step.is_finished():
      state = "finished"
      num_finished += 1
    lines.append(f"{name:<{width}}  {state:<8}  {', '.join(rows)}")
  lines.append(f"{len(named)} runs, {num_finished} of them finished")
  return "\n".join(lines)
