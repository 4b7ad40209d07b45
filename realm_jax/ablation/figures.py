"""The figures of rows: over seeds, and compared with REALM."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from realm_jax.ablation.rows import REALM, Row
from realm_jax.ablation.runs import Plan, RowResult
from realm_jax.evaluation import resampling
from realm_jax.evaluation.compare import paired_scores


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
