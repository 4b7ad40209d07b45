"""How far the same run differs between layouts of processes and devices."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.files.metric_rows import read_rows

# Scores that differ by less, relative to the greatest, are the same: two
# layouts add up the same numbers in different orders, 20 updates long.
_SAME_SCORE = 1e-4


class Retrieved(NamedTuple):
  """Blocks that were retrieved for a batch: ids [b, k] and scores [b, k]."""

  ids: np.ndarray
  scores: np.ndarray


class DifferingIds(NamedTuple):
  """How many retrieved ids differ, and how many of them are no ties."""

  compared: int
  differ: int
  not_ties: int


def rows(model_dir: Path) -> list[dict[str, float]]:
  """Returns the metrics of every step."""
  return read_rows(model_dir)


def losses(model_dir: Path) -> list[float]:
  """Returns the loss of every step."""
  return [row["loss"] for row in rows(model_dir)]


def greatest_difference(
  expected: Sequence[float], got: Sequence[float]
) -> float:
  """Returns the greatest relative difference; infinite if steps are missing.

  Two losses of 0, as of questions without an answer in any block, are the same.
  """
  if len(expected) != len(got) or not expected:
    return float("inf")
  size = np.maximum(np.abs(expected), np.finfo(np.float32).tiny)
  return float((np.abs(np.subtract(got, expected)) / size).max())


def retrieved(model_dir: Path) -> dict[int, Retrieved]:
  """Reads what each checkpoint has retrieved for the step after it."""
  found = {}
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    for step in store.steps():
      item: dict[str, Any] = store.restore(step, items=("loop",))["loop"]
      if "ids" in item:
        # Ids are stored as two words of 32 bits.
        words = np.ascontiguousarray(item["ids"], dtype=np.int32)
        ids = words.view(np.int64)[..., 0]
        found[step] = Retrieved(ids, np.asarray(item["scores"]))
  return found


def differing_ids(
  expected: Mapping[int, Retrieved], got: Mapping[int, Retrieved]
) -> DifferingIds:
  """Compares what two runs have retrieved, checkpoint by checkpoint.

  An id that only one run has retrieved is a tie if its score is that of the
  last one that the other run has retrieved for the query. An id that both have
  retrieved must have the same score in both, and its place is then a matter of
  ties. A checkpoint that only one run has counts as different throughout.
  """
  compared = differ = not_ties = 0
  for step in sorted(expected.keys() | got.keys()):
    if step not in expected or step not in got:
      missing = (expected.get(step) or got[step]).ids.size
      compared, differ = compared + missing, differ + missing
      not_ties += missing
      continue
    one, other = expected[step], got[step]
    compared += one.ids.size
    differ += int((one.ids != other.ids).sum())
    tolerance = _SAME_SCORE * float(np.abs(one.scores).max())
    for row in range(len(one.ids)):
      not_ties += _not_ties(_row(one, row), _row(other, row), tolerance)
  return DifferingIds(compared, differ, not_ties)


def _row(found: Retrieved, row: int) -> dict[int, float]:
  pairs = zip(found.ids[row].tolist(), found.scores[row].tolist(), strict=True)
  return dict(pairs)


def _not_ties(
  one: Mapping[int, float], other: Mapping[int, float], tolerance: float
) -> int:
  """Counts the blocks of a query that ties do not explain."""
  last = {True: min(one.values()), False: min(other.values())}
  count = 0
  for block in one.keys() | other.keys():
    if block in one and block in other:
      count += abs(one[block] - other[block]) > tolerance
    else:
      is_ours = block in one
      score = one[block] if is_ours else other[block]
      count += abs(score - last[not is_ours]) > tolerance
  return count


def read_times(file: Path) -> list[list[float]]:
  """Reads what `benchmarks.runs.timed_decisions` wrote."""
  return json.loads(file.read_text())


def agreement_overhead(
  times: Sequence[Sequence[Sequence[Sequence[float]]]],
  together: Sequence[Sequence[float]],
  alone: Sequence[Sequence[float]],
) -> dict[str, float]:
  """Measures decisions beyond the wait for the slower process.

  A decision lasts from when the last process asks for it until the last process
  has it.

  Args:
    times: For each run and process, step and seconds before and after each
      decision.
    together: Duration of every step in these runs.
    alone: The same in runs whose processes decide by themselves.
  """
  asked, decided = [], []
  for run in times:
    table = np.asarray(run, np.float64)
    if (table[..., 0] != table[:1, :, 0]).any():
      raise ValueError("the processes did not decide the same steps")
    asked.append(table[..., 1])
    decided.append(table[..., 2])
  last_asked = np.concatenate([one.max(axis=0) for one in asked])
  seconds = np.concatenate([one.max(axis=0) for one in decided]) - last_asked
  waits = np.concatenate([np.ptp(one, axis=0) for one in asked])
  step = float(np.median(np.concatenate(together)))
  step_alone = float(np.median(np.concatenate(alone)))
  median = float(np.median(seconds))
  return {
    "steps": float(seconds.size),
    "decision_ms": 1e3 * median,
    "decision_p95_ms": 1e3 * float(np.quantile(seconds, 0.95)),
    "wait_for_slower_ms": 1e3 * float(np.median(waits)),
    "step_ms": 1e3 * step,
    "step_alone_ms": 1e3 * step_alone,
    "decision_share": median / step,
    "added_to_step": step / step_alone - 1,
  }
