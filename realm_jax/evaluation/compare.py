"""Two evaluations of the same questions, question by question."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from realm_jax.console import columns
from realm_jax.errors import RealmError
from realm_jax.evaluation.scores import (
  Line,
  Scores,
  bootstrap_intervals,
  permutation_p_values,
  question_scores,
)
from realm_jax.storage.access import require_readable
from realm_jax.storage.json_files import read_lines, read_object

_NAMES = ("id", "question", "references", "evidence")


class ComparisonError(RealmError):
  """Files of two evaluations that cannot be compared."""


def compare(
  first: epath.PathLike, second: epath.PathLike, *, seed: int = 0
) -> dict[str, Any]:
  """Compares the scores of two files of predictions or of retrieved blocks.

  The files are `predictions.jsonl` or `retrieved.jsonl` of evaluations of the
  same questions, in any order. `seed` is that of the resampling.

  Returns:
    The `files`, `num_questions` and, for each of the `metrics` of
    `paired_scores`: the means `first` and `second`; their `difference`,
    second − first, with its 95 % paired bootstrap `interval` and the two-sided
    `p_value` of a paired randomization test; and on how many questions each is
    better, `first_better` and `second_better`.

  Raises:
    ComparisonError: A file is no such file, or they have other questions.
    StoreAccessError: A bucket cannot be read.
  """
  one, two = paired_scores(first, second)
  differences = {name: two[name] - one[name] for name in one}
  intervals = bootstrap_intervals(differences, seed=seed)
  p_values = permutation_p_values(differences, seed=seed)
  metrics = {
    name: {
      "first": float(np.nanmean(one[name])),
      "second": float(np.nanmean(two[name])),
      "difference": float(np.nanmean(own)),
      "interval": intervals[name],
      "p_value": p_values[name],
      "first_better": int(np.sum(own < 0)),
      "second_better": int(np.sum(own > 0)),
    }
    for name, own in differences.items()
  }
  return {
    "files": [str(first), str(second)],
    "num_questions": len(next(iter(one.values()))),
    "metrics": metrics,
  }


def paired_scores(
  first: epath.PathLike, second: epath.PathLike
) -> tuple[Scores, Scores]:
  """Returns the scores that two files of evaluations both have.

  Questions are paired by their ids, in the order of the first file. If unequal
  numbers of blocks were retrieved, the reciprocal rank, which grows with their
  number, is left out. Raises what `compare` does.
  """
  require_readable(first, second)
  here, there = _read_lines(first), _read_lines(second)
  if alone := here.keys() ^ there.keys():
    raise ComparisonError(
      f"{len(alone)} questions are in one of {first} and {second} alone, among "
      f"them {min(alone)!r}; evaluate both on the same QUESTIONS"
    )
  for key, name in itertools.product(here, ("question", "references")):
    if here[key][name] != there[key][name]:
      raise ComparisonError(
        f"the {name} of {key!r} are {here[key][name]!r} in {first} and "
        f"{there[key][name]!r} in {second}; evaluate both on the same QUESTIONS"
      )
  one = question_scores(list(here.values()))
  two = question_scores([there[key] for key in here])
  depths = {len(line["evidence"]) for line in (*here.values(), *there.values())}
  left_out = set() if len(depths) == 1 else {"mrr", "mrr_characters"}
  shared = [name for name in one if name in two and name not in left_out]
  return {n: one[n] for n in shared}, {n: two[n] for n in shared}


def comparison_table(found: Mapping[str, Any]) -> str:
  """Returns a comparison as a table for a terminal."""
  rows: list[list[object]] = []
  for name, metric in found["metrics"].items():
    low, high = metric["interval"]
    shown = metric | {
      "difference": f"{metric['difference']:+.4f}",
      "interval": f"[{low:+.4f}, {high:+.4f}]",
    }
    rows = rows or [["", *shown]]
    rows.append([name, *shown.values()])
  first, second = found["files"]
  return (
    f"first   {first}\nsecond  {second}\n"
    f"{found['num_questions']} questions\n\n{columns(rows)}"
  )


def _read_lines(path: epath.PathLike) -> dict[str, Line]:
  """Returns the lines of a file by the ids of their questions."""
  by_id: dict[str, Line] = {}

  def add(text: bytes) -> None:
    line = read_object(text)
    key, *_ = (line[name] for name in _NAMES)
    if key in by_id:
      raise RealmError(f"a second line with the id {key!r}")
    by_id[key] = line

  wanted = "predictions.jsonl or retrieved.jsonl of an evaluation"
  read_lines(path, add, wanted=wanted, error=ComparisonError)
  return by_id
