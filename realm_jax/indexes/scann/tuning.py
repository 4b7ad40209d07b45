"""Chooses a tree's structure, and how much of it is searched, by measuring.

A point of a tree is a number of leaves to search and a number of vectors to
score again. Of one tree, the fastest point that meets the recall target is
chosen. Of several trees over a sample of the corpus, the one is chosen whose
point would be fastest on the whole corpus.
"""

import bisect
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.optimize
from jaxtyping import Float64

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import ScannSettings, Structure

# A structure must be this much faster than another, since times scatter.
GAIN = 1.05
_REPEATS = 5
# If a point is this much slower than the best, no more leaves are tried.
_HOPELESS = 1.5
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REORDERED = (16, 32, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)
# Numbers of leaves to try, relative to the first. All are tried, because the
# best may lie beyond a worse one.
_LEAF_FACTORS = (2, 4, 8, 0.5, 0.25)
_MAX_LEAVES_PER_BLOCK = 1 / 16

# Fields of a `Structure` to change, and the speed-up that justifies it.
Variant: TypeAlias = tuple[Mapping[str, Any], float]


@dataclasses.dataclass(frozen=True)
class Point:
  """How much of a tree a search uses, as in `files.Tree`, and how well.

  The recall is at the k of the ground truth. The rate is that of all queries in
  one batch, the best of a few repetitions.
  """

  leaves_searched: int
  num_reordered: int
  recall: float
  queries_per_second: float


class Trial(NamedTuple):
  """A structure that was tried on the sample, at its fastest point.

  `predicted` is the rate on the whole corpus, in queries per second; 0 below
  the recall target.
  """

  structure: Structure
  point: Point
  predicted: float = 0.0


def fastest_point(
  index: ScannIndex,
  truth: GroundTruth,
  settings: ScannSettings,
  *,
  target: float,
) -> tuple[Point, list[Point]]:
  """Returns the fastest point that meets the target, and all measured ones.

  If none meets it, the point of the best recall is returned. For each number
  of leaves, a bisection finds the fewest reordered vectors that meet it. More
  leaves are tried until they cost more than fewer reordered vectors save. What
  the settings fix is kept.
  """
  assert index.tree is not None
  num_blocks, num_leaves = index.num_blocks, index.tree.structure.num_leaves
  leaves = _grid(_LEAVES, 1, num_leaves, settings.num_leaves_searched)
  reordered = _grid(_REORDERED, truth.k, num_blocks, settings.num_reordered)
  measured: dict[tuple[int, int], Point] = {}

  def at(searched: int, again: int) -> Point:
    point = searched, again
    if point not in measured:
      measured[point] = measure(index, truth, *point, target=target)
    return measured[point]

  best: Point | None = None
  before = -1.0
  for searched in leaves:
    # More leaves pay off only if fewer vectors are reordered.
    limit = best.num_reordered if best is not None else num_blocks + 1
    fewer = [again for again in reordered if again < limit]
    if not fewer:
      break
    if (recall := at(searched, fewer[-1]).recall) < target:
      if best is not None and recall <= before:
        break  # The recall is limited by the reordered vectors, not leaves.
      before = recall
      continue
    enough = bisect.bisect_left(
      fewer[:-1], True, key=lambda again: at(searched, again).recall >= target
    )
    point = at(searched, fewer[enough])
    if best is None or point.queries_per_second > best.queries_per_second:
      # Fewer leaves were not tried with so few reordered vectors.
      best, before = point, -1.0
    elif point.queries_per_second * _HOPELESS < best.queries_per_second:
      break
  points = list(measured.values())
  return best or max(points, key=lambda p: p.recall), points


def measure(
  index: ScannIndex,
  truth: GroundTruth,
  leaves_searched: int,
  num_reordered: int,
  *,
  target: float = 0.0,
) -> Point:
  """Measures a point; only once if its recall is below the target."""
  seconds: list[float] = []
  recall = 0.0
  # The speed of a point below the target does not matter.
  while not seconds or (recall >= target and len(seconds) < _REPEATS):
    start = time.perf_counter()
    found = index.search_at(
      truth.queries, truth.k, leaves_searched, num_reordered
    )
    seconds.append(time.perf_counter() - start)
    recall = truth.recall(found)
  return Point(
    leaves_searched=leaves_searched,
    num_reordered=num_reordered,
    recall=recall,
    queries_per_second=len(truth.queries.token_ids) / min(seconds),
  )


def _grid(
  values: Sequence[int], low: int, high: int, fixed: int | None
) -> list[int]:
  """Returns the values to try, limited to a range."""
  values = values if fixed is None else [fixed]
  return sorted({max(low, min(v, high)) for v in values})


def choose_structure(
  start: Structure,
  variants: Iterable[Variant],
  attempt: Callable[[Structure], tuple[Point, list[Point]]],
  *,
  target: float,
  num_blocks: int,
  sampled: int,
  may_vary_leaves: bool = True,
) -> tuple[Structure, list[Trial]]:
  """Returns the best structure, and all trials.

  Tries one change of `start` after another, each on top of those that were kept
  because they were faster: more and fewer leaves if they may vary, then the
  variants. `attempt` builds a tree over `sampled` of the `num_blocks` blocks,
  and returns its fastest point and all measured ones.
  """
  costs = Costs(num_blocks=num_blocks, sampled=sampled)

  def tried(structure: Structure) -> Trial:
    point, points = attempt(structure)
    costs.learn(structure, [p for p in points if p.recall >= target])
    return Trial(structure, point)

  def speed(trial: Trial) -> float:
    if trial.point.recall < target:
      return 0.0
    return costs.queries_per_second(trial.structure, trial.point)

  numbers = [int(start.num_leaves * factor) for factor in _LEAF_FACTORS]
  leaves: list[Variant] = [
    ({"num_leaves": number}, GAIN)
    for number in numbers
    if may_vary_leaves and 1 <= number <= sampled * _MAX_LEAVES_PER_BLOCK
  ]
  best = tried(start)
  trials = [best]
  for change, gain in (*leaves, *variants):
    trial = tried(dataclasses.replace(best.structure, **change))
    trials.append(trial)
    # Below the target, the higher recall is better.
    if speed(best) == 0:
      is_better = speed(trial) > 0 or trial.point.recall > best.point.recall
    else:
      is_better = speed(trial) > gain * speed(best)
    best = trial if is_better else best
  return best.structure, [t._replace(predicted=speed(t)) for t in trials]


class Costs:
  """Predicts a search's time on the whole corpus from a sample.

  The time of a query is modeled as a constant plus a cost for each leaf of the
  tree, each leaf that is searched, each vector in those, and each vector that
  is scored again. The vectors in the leaves grow with the corpus.
  """

  def __init__(self, *, num_blocks: int, sampled: int):
    self._num_blocks, self._sampled = num_blocks, sampled
    self._work: list[Float64[np.ndarray, " t"]] = []
    self._seconds: list[float] = []

  def learn(self, structure: Structure, points: Iterable[Point]) -> None:
    """Adds measurements on the sample."""
    for point in points:
      self._work.append(_work(structure, point, self._sampled))
      self._seconds.append(1 / point.queries_per_second)

  def queries_per_second(self, structure: Structure, point: Point) -> float:
    """Predicts the speed of a sample's point on the whole corpus."""
    if self._sampled == self._num_blocks:
      return point.queries_per_second
    work, seconds = np.array(self._work), np.array(self._seconds)
    # Errors are relative to the measured time, and no cost is negative.
    scale = work.max(axis=0)
    weighted = work / scale / seconds[:, None]
    costs, _ = scipy.optimize.nnls(weighted, np.ones(len(seconds)))
    corpus_seconds, sample_seconds = (
      _work(structure, point, count) / scale @ costs
      for count in (self._num_blocks, self._sampled)
    )
    return point.queries_per_second * float(sample_seconds / corpus_seconds)


def _work(
  structure: Structure, point: Point, num_blocks: int
) -> Float64[np.ndarray, " t"]:
  """Returns the quantities that the costs multiply."""
  leaves, searched = structure.num_leaves, point.leaves_searched
  rows = searched / leaves * num_blocks * (1 + structure.spilled)
  return np.array([1.0, leaves, searched, rows, point.num_reordered])
