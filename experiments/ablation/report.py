"""Results of rows over seeds, their comparison with REALM, and the report."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.ablation.plan import Metric, Plan
from experiments.pipeline import Step, markdown
from realm_jax.console import columns
from realm_jax.evaluation.compare import paired_scores
from realm_jax.evaluation.scores import (
  bootstrap_intervals,
  permutation_p_values,
)
from realm_jax.storage.atomic import atomic_text_file

REPORT = "ablation.md"
_STATEMENT_RECALL = "statement_recall_at_1"
# Row with the retriever from which the others start.
START = "inverse_cloze"
# Share of the start's recall below which a run has collapsed. The trainer has a
# warning with the same threshold, for the best candidates.
_FALLEN = 0.6
_SIGNIFICANT = 0.01
_INTRODUCTION = (
  "Each figure is the mean over the seeds, with their standard deviation. "
  "Differences are from REALM, those of a stale index from the same "
  "objective's freshest, with 95 % bootstrap intervals and the p-value of a "
  "paired randomization test, over the questions of all seeds. A row is called "
  f"better if its p-value is below {_SIGNIFICANT} after Holm's correction over "
  "the rows of the table, and if it is better in every seed."
)

_Row = Mapping[str, Any]
# Scores of the questions, one array for each seed.
_Seeds = Sequence[Float[np.ndarray, "_"]]


def collect_results(plan: Plan) -> dict[str, Any]:
  """Returns the results of a plan's rows, as JSON.

  Returns:
    `rows`, with REALM's first. Each row has its `name`, `title`, `part`,
    `published` scores, `training`, and `metrics` from `row_statistics`, with a
    `holm_p_value` over all rows. A row `is_better` than its reference if this
    p-value is below 0.01 and the row is better in each of several seeds.

  Raises:
    ComparisonError: A file of an evaluation is missing, or its questions differ
      from REALM's.
  """
  collected: list[dict[str, Any]] = []
  for row in plan.rows:
    pretraining = plan.pretrainings.get(row.name)
    is_stale = pretraining is not None and pretraining.never_refreshed
    metrics = {}
    for metric in plan.metrics:
      # None if the kinds of results differ.
      here, there = (
        [
          one[metric.result].folder
          for one in plan.results[name]
          if metric.result in one
        ]
        for name in (row.name, row.reference)
      )
      if here and there:
        pairs = [*map(paired_scores, there, here)]
        metrics[metric.name] = row_statistics(
          [second[metric.score] for _, second in pairs],
          [first[metric.score] for first, _ in pairs],
        )
    collected.append(
      {
        "name": row.name,
        "title": row.title + " (never refreshed)" * is_stale,
        "part": row.part,
        "published": {**row.published},
        "training": {**plan.training.get(row.name, {})},
        "metrics": metrics,
      }
    )
  recalls = {
    row["name"]: row["metrics"][_STATEMENT_RECALL]["by_seed"]
    for row in collected
    if _STATEMENT_RECALL in row["metrics"]
  }
  for row in collected:
    if row["training"] and {row["name"], START} <= recalls.keys():
      collapsed = num_collapsed(recalls[row["name"]], recalls[START])
      row["training"]["collapsed"] = collapsed
  for metric in plan.metrics:
    compared = [
      row["metrics"][metric.name]
      for row in collected[1:]
      if metric.name in row["metrics"]
    ]
    corrected = holm([statistics["p_value"] for statistics in compared])
    for statistics, p_value in zip(compared, corrected, strict=True):
      num_seeds = len(statistics["by_seed"])
      statistics["holm_p_value"] = p_value
      statistics["is_better"] = (
        p_value < _SIGNIFICANT and statistics["seeds_better"] == num_seeds > 1
      )
  return {"rows": collected}


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values corrected for multiple tests (Holm 1979), in their order.

  The smallest of m p-values is multiplied by m, the next by m − 1 and so on.
  Corrected values never decrease.
  """
  corrected, least = [0.0] * len(p_values), 0.0
  for rank, place in enumerate(np.argsort(p_values, kind="stable")):
    least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
    corrected[place] = least
  return corrected


def num_collapsed(scores: Sequence[float], start: Sequence[float]) -> str:
  """Returns the number of collapsed runs, such as "1 of 3".

  A run has collapsed if its score, recall@1 for statements, is less than 0.6
  times the score of the retriever from which it started.
  """
  pairs = zip(scores, start, strict=True)
  fallen = sum(score < _FALLEN * before for score, before in pairs)
  return f"{fallen} of {len(scores)}"


def row_statistics(scores: _Seeds, realm: _Seeds) -> dict[str, Any]:
  """Returns the statistics of a row, given each question's score, by seed.

  Returns:
    `by_seed`: the mean of each seed.
    `mean` and `standard_deviation` of these means. The latter has one degree of
    freedom less, and is None for a single seed.
    `interval`: the 95 % bootstrap interval of the mean, over questions within
    seeds.
    `difference` from REALM, with its `difference_interval`.
    `p_value` of a paired randomization test over the questions of all seeds.
    `seeds_better`: the number of seeds in which the row is better than REALM.
  """
  by_seed = [float(np.mean(of_seed)) for of_seed in scores]
  pairs = zip(scores, realm, strict=True)
  differences = [{"": row - other} for row, other in pairs]
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


def write_report(
  output_dir: Path, metrics: Sequence[Metric], results: Mapping[str, Any]
) -> str:
  """Writes ablation.md and the plots, and returns tables for a terminal.

  `results` are from `collect_results`, with the `seeds` and the `commit` added.
  """
  rows = results["rows"]
  metrics = [m for m in metrics if m.name in rows[0]["metrics"]]
  plots = _write_plots(output_dir, metrics, rows)
  tables = {metric.title: _cells(rows, metric) for metric in metrics}
  sections = {title: markdown(cells) for title, cells in tables.items()}
  if names := list(dict.fromkeys(n for row in rows for n in row["training"])):
    training = [
      [row["title"], *(row["training"].get(name, "") for name in names)]
      for row in rows
    ]
    sections = {"Training": markdown([["", *names], *training]), **sections}
  with atomic_text_file(output_dir / REPORT) as file:
    source = f"{len(results['seeds'])} seeds, commit {results['commit']}."
    file.write(f"# Ablation\n\n{source} {_INTRODUCTION}\n")
    for title, table in sections.items():
      file.write(f"\n## {title}\n\n{table}\n")
    for name, title in plots.items():
      file.write(f"\n![{title}]({name})\n")
  shown = "\n\n".join(columns(cells) for cells in tables.values())
  return f"{shown}\n\nreport: {output_dir / REPORT}"


def _cells(rows: Sequence[_Row], metric: Metric) -> list[list[str]]:
  """Returns the cells of a metric's table, starting with its header."""
  header = [metric.title, "mean", "sd", "difference", "interval", "p", "Holm"]
  cells = [[*header, "seeds", "", "paper"]]
  for row in rows:
    if (statistics := row["metrics"].get(metric.name)) is None:
      continue
    deviation = statistics["standard_deviation"]
    low, high = statistics["difference_interval"]
    compared = [""] * 6
    if row is not rows[0]:
      compared = [
        f"{statistics['difference']:+.3f}",
        f"[{low:+.3f}, {high:+.3f}]",
        f"{statistics['p_value']:.4f}",
        f"{statistics['holm_p_value']:.4f}",
        f"{statistics['seeds_better']} of {len(statistics['by_seed'])}",
        "better" if statistics["is_better"] else "",
      ]
    paper = row["published"].get(metric.name)
    cells.append(
      [
        row["title"],
        f"{statistics['mean']:.3f}",
        "" if deviation is None else f"{deviation:.3f}",
        *compared,
        "" if paper is None else f"{paper / 100:.3f}",
      ]
    )
  return cells


def import_pyplot() -> Any:
  """Returns matplotlib's pyplot, configured for files.

  It is imported late because this takes a second.
  """
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  return pyplot


def _write_plots(
  output_dir: Path, metrics: Sequence[Metric], rows: Sequence[_Row]
) -> dict[str, str]:
  """Writes a plot for each part of the rows; returns their titles by file.

  Each metric has a panel, with a bar for each row, REALM's at the top, and a
  dot for each seed.

  Raises:
    ImportError: matplotlib is not installed.
  """
  pyplot, written = import_pyplot(), {}
  for part in dict.fromkeys(row["part"] for row in rows[1:]):
    title, path = part.replace("_", " "), output_dir / f"{part}.png"
    others = [row for row in rows[1:] if row["part"] == part]
    drawn = [rows[0], *others]
    shown = [m for m in metrics if any(m.name in r["metrics"] for r in others)]
    if not shown:
      continue
    columns_shown = min(len(shown), 3)
    rows_shown = -(-len(shown) // columns_shown)
    figure, panels = pyplot.subplots(
      rows_shown,
      columns_shown,
      figsize=(
        8 if len(shown) == 1 else 6 * columns_shown,
        rows_shown * (1.5 + 0.5 * len(drawn)),
      ),
      squeeze=False,
    )
    for axes in panels.flat[len(shown) :]:
      axes.remove()
    for axes, metric in zip(panels.flat, shown, strict=False):
      for place, row in enumerate(drawn):
        if statistics := row["metrics"].get(metric.name):
          seeds = statistics["by_seed"]
          axes.barh(place, statistics["mean"], color="tab:blue", alpha=0.6)
          axes.plot(statistics["interval"], [place] * 2, "tab:orange", lw=3)
          axes.plot(seeds, [place] * len(seeds), "k.", zorder=3)
      axes.set_yticks(range(len(drawn)), [row["title"] for row in drawn])
      axes.set_ylim(len(drawn) - 0.5, -0.5)
      axes.set_xlabel(metric.title)
      axes.set_xlim(left=0)
      is_first = axes.get_subplotspec().is_first_col()
      axes.tick_params(labelleft=is_first)
    figure.suptitle(f"{title} (orange: 95 % intervals; dots: seeds)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    written[path.name] = title
  return written


def plan_table(plans: Iterable[Plan]) -> str:
  """Lists steps with their states and the rows that share them, and a total."""
  named: dict[str, tuple[Step, list[str]]] = {}
  for plan in plans:
    for folder, use in plan.uses.items():
      # A later plan reuses the steps of an earlier one.
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
