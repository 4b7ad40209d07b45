"""Two evaluations of the same questions, question by question."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from realm_jax.console import columns
from realm_jax.evaluation import resampling
from realm_jax.evaluation.resampling import Scores
from realm_jax.evaluation.scores import Line, means, question_scores
from realm_jax.storage.access import require_readable
from realm_jax.storage.paths import read_text


class ComparisonError(ValueError):
  """Files of two evaluations that cannot be compared."""


def compare(
  first: epath.PathLike, second: epath.PathLike, *, seed: int = 0
) -> dict[str, Any]:
  """Compares the scores of two files of predictions or of retrieved blocks.

  Questions are paired by their ids; the order of the files does not matter.

  Args:
    first: `predictions.jsonl` or `retrieved.jsonl` of an evaluation.
    second: The same of another evaluation on the same questions.
    seed: Seed of the bootstrap and of the randomization test.

  Returns:
    The `files`, `num_questions` and, for each of the `metrics` that both files
    have (without the reciprocal rank if they retrieved unequal numbers of
    blocks): the means `first` and `second`; their `difference`, second − first,
    with its 95 % paired bootstrap `interval` and the two-sided `p_value` of a
    paired randomization test; and on how many questions each is better,
    `first_better` and `second_better`.

  Raises:
    ComparisonError: A file is no such file, or they have other questions.
    StoreAccessError: A bucket cannot be read.
  """
  paths = [str(first), str(second)]
  one, two = paired_scores(first, second)
  names = list(one)
  differences = {name: two[name] - one[name] for name in names}
  intervals = resampling.bootstrap_intervals(differences, seed=seed)
  p_values = resampling.permutation_p_values(differences, seed=seed)
  first_means, second_means = means(one), means(two)
  mean_differences = means(differences)
  metrics = {
    name: {
      "first": first_means[name],
      "second": second_means[name],
      "difference": mean_differences[name],
      "interval": intervals[name],
      "p_value": p_values[name],
      "first_better": int(np.sum(differences[name] < 0)),
      "second_better": int(np.sum(differences[name] > 0)),
    }
    for name in names
  }
  num_questions = len(one[names[0]])
  return {"files": paths, "num_questions": num_questions, "metrics": metrics}


def paired_scores(
  first: epath.PathLike, second: epath.PathLike
) -> tuple[Scores, Scores]:
  """Returns the scores that two files of evaluations both have.

  Questions are paired by their ids, in the order of the first file. If unequal
  numbers of blocks were retrieved, the reciprocal rank, which grows with their
  number, is left out.

  Raises:
    ComparisonError: A file is no such file, or they have other questions.
    StoreAccessError: A bucket cannot be read.
  """
  require_readable(first, second)
  paths = [str(first), str(second)]
  by_id = [_read_lines(path) for path in paths]
  _require_same_questions(by_id, paths)
  ids = list(by_id[0])
  scores = [question_scores([lines[i] for i in ids]) for lines in by_id]
  names = [name for name in scores[0] if name in scores[1]]
  if _depth(by_id[0]) != _depth(by_id[1]):
    names = [name for name in names if not name.startswith("mrr")]
  one, two = ({name: part[name] for name in names} for part in scores)
  return one, two


def comparison_table(found: Mapping[str, Any]) -> str:
  """Returns a comparison as a table for a terminal."""
  first, second = found["files"]
  names = "first second difference interval p_value first_better second_better"
  rows: list[Sequence[object]] = [["", *names.split()]]
  for name, metric in found["metrics"].items():
    low, high = metric["interval"]
    interval = f"[{low:+.4f}, {high:+.4f}]"
    texts = metric | {
      "interval": interval,
      "difference": f"{metric['difference']:+.4f}",
    }
    rows.append([name, *(texts[column] for column in names.split())])
  return (
    f"first   {first}\nsecond  {second}\n"
    f"{found['num_questions']} questions\n\n{columns(rows)}"
  )


def _read_lines(path: str) -> dict[str, Line]:
  """Returns the lines of a file by the ids of their questions."""
  try:
    text = read_text(path)
  except (FileNotFoundError, IsADirectoryError):
    raise ComparisonError(
      f"there is no file {path}; want the predictions.jsonl or "
      "retrieved.jsonl that `realm_jax.evaluate` writes to OUTPUT_DIR"
    ) from None
  by_id: dict[str, Line] = {}
  for number, row in enumerate(text.split("\n"), start=1):
    if not row:
      continue
    place = f"{path}, line {number}"
    try:
      line = json.loads(row)
      key = line["id"]
      has_all = {"question", "references", "evidence"} <= line.keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ComparisonError(f"{place}: not a line of predictions") from error
    if not has_all:
      raise ComparisonError(
        f"{place}: has no references and evidence; want a file that "
        "`realm_jax.evaluate` wrote"
      )
    if key in by_id:
      raise ComparisonError(f"{place}: a second line with the id {key!r}")
    by_id[key] = line
  if not by_id:
    raise ComparisonError(f"{path} has no line")
  return by_id


def _depth(lines: Mapping[str, Line]) -> int:
  """Returns the number of blocks that were retrieved for each question."""
  return len(next(iter(lines.values()))["evidence"])


def _require_same_questions(
  by_id: Sequence[Mapping[str, Line]], paths: Sequence[str]
) -> None:
  first, second = by_id
  for here, there, path in (
    (first, second, paths[0]),
    (second, first, paths[1]),
  ):
    if alone := [key for key in here if key not in there]:
      raise ComparisonError(
        f"{len(alone)} of the {len(here)} questions are in {path} alone, "
        f"among them {alone[0]!r}; evaluate both on the same QUESTIONS"
      )
  for key, line in first.items():
    for name in ("question", "references"):
      if line[name] != second[key][name]:
        raise ComparisonError(
          f"the {name} of {key!r} are {line[name]!r} in {paths[0]} and "
          f"{second[key][name]!r} in {paths[1]}; evaluate both on the same "
          "QUESTIONS"
        )
