"""Compares evaluations of the same questions, question by question."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from realm_jax.console import columns
from realm_jax.errors import RealmError
from realm_jax.evaluation.scores import (
  INTERVALS,
  PREDICTIONS,
  RETRIEVED,
  Line,
  Scores,
  bootstrap_intervals,
  permutation_p_values,
  question_scores,
  summarize,
)
from realm_jax.storage.access import require_readable
from realm_jax.storage.json_files import read_lines, read_object

_NAMES = ("id", "question", "references", "evidence")


class ComparisonError(RealmError):
  """Evaluations cannot be compared."""


def compare(
  *evaluations: epath.PathLike, metrics: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
  """Compares the scores of evaluations of the same questions, in any order.

  An evaluation is a `predictions.jsonl` or `retrieved.jsonl`, or the folder of
  one. `metrics` are the names of the metrics to compare, by default all of
  `paired_scores`. `seed` is the seed of resampling.

  Returns:
    The `evaluations`, and the `figures` of each, from `summarize`. Then the
    `comparisons` of all others with the first, by metric. A comparison has the
    means `first` and `second`, and their `difference`, second − first, with its
    95 % paired bootstrap `interval` and the two-sided `p_value` of a paired
    randomization test. It also has the numbers of questions on which each is
    better, `first_better` and `second_better`.

  Raises:
    ComparisonError: A file is not such a file, the questions differ, or an
      evaluation lacks a metric.
    StoreAccessError: A bucket cannot be read.

  Example:
    >>> import json
    >>> line = {"id": "q", "question": "where?", "references": ["Velt"]}
    >>> for name, found in {"a.jsonl": False, "b.jsonl": True}.items():
    ...   block = {"contains_answer": found, "contains_characters": found}
    ...   text = json.dumps(line | {"evidence": [block]})
    ...   _ = epath.Path(name).write_text(text)
    >>> compared = compare("a.jsonl", "b.jsonl", metrics=["mrr"])
    >>> compared["comparisons"][0]["mrr"]["difference"]
    1.0
  """
  every = paired_scores(*evaluations)
  if unknown := sorted({*metrics} - every[0].keys()):
    raise ComparisonError(
      f"the evaluations do not all have the metrics {', '.join(unknown)}; want "
      f"some of {', '.join(every[0])}"
    )
  every = [{n: one[n] for n in metrics or one} for one in every]
  return {
    "evaluations": [*map(str, evaluations)],
    "figures": [*map(summarize, every)],
    "comparisons": [
      _paired_metrics(every[0], other, seed=seed) for other in every[1:]
    ],
  }


def _paired_metrics(
  first: Scores, second: Scores, *, seed: int
) -> dict[str, Any]:
  differences = {name: second[name] - first[name] for name in first}
  intervals = bootstrap_intervals(differences, seed=seed)
  p_values = permutation_p_values(differences, seed=seed)
  return {
    name: {
      "first": float(np.nanmean(first[name])),
      "second": float(np.nanmean(second[name])),
      "difference": float(np.nanmean(values)),
      "interval": intervals[name],
      "p_value": p_values[name],
      "first_better": int(np.sum(values < 0)),
      "second_better": int(np.sum(values > 0)),
    }
    for name, values in differences.items()
  }


def paired_scores(*evaluations: epath.PathLike) -> list[Scores]:
  """Returns the scores that all evaluations have, for each evaluation.

  Questions are paired by their ids, in the order of the first evaluation. If
  unequal numbers of blocks were retrieved, the reciprocal rank, which grows
  with their number, is left out. Raises the same errors as `compare`.
  """
  require_readable(*evaluations)
  first, *others = [_file_of(path) for path in evaluations]
  lines = _read_lines(first)
  every = [question_scores([*lines.values()])]
  depths = {len(line["evidence"]) for line in lines.values()}
  for path in others:
    there = _read_lines(path)
    if alone := lines.keys() ^ there.keys():
      raise ComparisonError(
        f"{len(alone)} questions are in one of {first} and {path} alone, among "
        f"them {min(alone)!r}; evaluate both on the same QUESTIONS"
      )
    for key, name in itertools.product(lines, ("question", "references")):
      if lines[key][name] != there[key][name]:
        raise ComparisonError(
          f"the {name} of {key!r} are {lines[key][name]!r} in {first} and "
          f"{there[key][name]!r} in {path}; evaluate both on the same QUESTIONS"
        )
    every.append(question_scores([there[key] for key in lines]))
    depths |= {len(line["evidence"]) for line in there.values()}
  left_out = set() if len(depths) == 1 else {"mrr", "mrr_characters"}
  shared = set.intersection(*map(set, every)) - left_out
  return [{n: one[n] for n in every[0] if n in shared} for one in every]


def _file_of(evaluation: epath.PathLike) -> epath.Path:
  """Returns the file of an evaluation, from its path or its folder's."""
  path = epath.Path(evaluation)
  files = path / PREDICTIONS, path / RETRIEVED
  return next((file for file in files if file.exists()), path)


def comparison_table(compared: Mapping[str, Any]) -> str:
  """Returns the metrics and the comparisons as tables for a terminal."""
  first, *others = compared["evaluations"]
  rows: list[list[object]] = [["", *compared["figures"][0][INTERVALS]]]
  for path, summary in zip(
    compared["evaluations"], compared["figures"], strict=True
  ):
    shown = [
      f"{summary[name]:.4f} [{low:.4f}, {high:.4f}]"
      for name, (low, high) in summary[INTERVALS].items()
    ]
    rows.append([path, *shown])
  number = compared["figures"][0]["num_questions"]
  tables = [f"{number} questions", columns(rows)]
  for path, metrics in zip(others, compared["comparisons"], strict=True):
    rows = []
    for name, metric in metrics.items():
      low, high = metric["interval"]
      shown = metric | {
        "difference": f"{metric['difference']:+.4f}",
        "interval": f"[{low:+.4f}, {high:+.4f}]",
      }
      rows = rows or [["", *shown]]
      rows.append([name, *shown.values()])
    tables += [f"first   {first}\nsecond  {path}", columns(rows)]
  return "\n\n".join(tables)


def _read_lines(path: epath.PathLike) -> dict[str, Line]:
  """Returns the lines of a file by the ids of their questions."""
  by_id: dict[str, Line] = {}

  def add(text: bytes) -> None:
    line = read_object(text)
    key, *_ = (line[name] for name in _NAMES)
    if key in by_id:
      raise RealmError(f"a second line with the id {key!r}")
    by_id[key] = line

  wanted = f"{PREDICTIONS} or {RETRIEVED} of an evaluation"
  read_lines(path, add, wanted=wanted, error=ComparisonError)
  return by_id
