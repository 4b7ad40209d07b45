"""Chooses a tree's structure, and how much of it is searched, by measuring.

A point of a tree is a number of leaves to search and a number of vectors to
score again. Of one tree, the fastest point that meets the recall target is
chosen. Of several trees over a sample of the corpus, the one is chosen whose
point would be fastest on the whole corpus.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
from jaxtyping import Float32, Float64, Int

from realm_jax.indexes.protocol import QueryBatch, SearchResult
from realm_jax.indexes.scann.settings import Structure

# Scores that differ by less than this, relative to the score, are equal: among
# blocks with the same text, any is a correct result.
TIE = 1e-5
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

# A search at a point: (queries, k, leaves searched, reordered) -> result.
Search: TypeAlias = Callable[[QueryBatch, int, int, int], SearchResult]
# Fields of a `Structure` to change, and the speed-up that justifies it.
Variant: TypeAlias = tuple[Mapping[str, Any], float]


@dataclasses.dataclass(frozen=True)
class GroundTruth:
  """The exact nearest neighbors of a sample of queries.

  Attributes:
    queries: Queries with vectors.
    k: k of recall@k.
    kth_score: Score of each query's k-th best block.
    score: Function from blocks' rows [b, k] to their exact scores.
  """

  queries: QueryBatch
  k: int
  kth_score: Float32[np.ndarray, " b"]
  score: Callable[[Int[np.ndarray, "b k"]], Float32[np.ndarray, "b k"]]

  def recall(self, found: SearchResult) -> float:
    """Returns the share of blocks that score no worse than the k-th best."""
    kth = self.kth_score[:, None]
    return float(np.mean(self.score(found.rows) >= kth - TIE * abs(kth)))


@dataclasses.dataclass(frozen=True)
class Point:
  """How much of a tree a search uses, and what was measured.

  Attributes:
    leaves_searched: Number of leaves that a query searches.
    num_reordered: Number of vectors that are scored again.
    recall: Recall at the k of the ground truth.
    queries_per_second: Rate of all queries in one batch; the best of a few
      repetitions.
  """

  leaves_searched: int
  num_reordered: int
  recall: float
  queries_per_second: float


@dataclasses.dataclass(frozen=True)
class Trial:
  """A structure that was tried on the sample.

  Attributes:
    structure: Structure of the tree.
    point: Point that `fastest_point` chose.
    predicted: Predicted queries per second on the whole corpus; 0 below the
      recall target.
  """

  structure: Structure
  point: Point
  predicted: float


def fastest_point(
  search: Search,
  truth: GroundTruth,
  *,
  target: float,
  num_leaves: int,
  num_blocks: int,
  leaves_searched: int | None = None,
  num_reordered: int | None = None,
) -> tuple[Point, list[Point]]:
  """Returns the fastest point that meets the target, and all measured ones.

  If none meets it, the point of the best recall is returned. For each number
  of leaves, a bisection finds the fewest reordered vectors that meet it. More
  leaves are tried until they cost more than fewer reordered vectors save.

  Args:
    search: Search of the tree.
    truth: Ground truth of the queries.
    target: Target of the recall.
    num_leaves: Number of leaves of the tree.
    num_blocks: Number of blocks, N.
    leaves_searched: Number of leaves to search; None chooses.
    num_reordered: Number of vectors to score again; None chooses.
  """
  k = truth.k
  leaves = _grid(_LEAVES, 1, num_leaves, leaves_searched)
  reordered = _grid(_REORDERED, k, num_blocks, num_reordered)
  measured: dict[tuple[int, int], Point] = {}

  def at(searched: int, again: int) -> Point:
    if (searched, again) not in measured:
      measured[searched, again] = _measure(
        search, truth, target, searched, again
      )
    return measured[searched, again]

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
    low, high = 0, len(fewer) - 1
    while low < high:
      middle = (low + high) // 2
      if at(searched, fewer[middle]).recall >= target:
        high = middle
      else:
        low = middle + 1
    point = at(searched, fewer[high])
    if best is None or point.queries_per_second > best.queries_per_second:
      # Fewer leaves were not tried with so few reordered vectors.
      best, before = point, -1.0
    elif point.queries_per_second * _HOPELESS < best.queries_per_second:
      break
  points = list(measured.values())
  return best or max(points, key=lambda p: p.recall), points


def point_of_equal_work(
  search: Search,
  truth: GroundTruth,
  point: Point,
  *,
  num_leaves: int,
  growth: float,
) -> Point:
  """Measures a sample's tree, with as many vectors scored as in the corpus.

  Args:
    search: Search of the sample's tree.
    truth: Ground truth of the queries.
    point: Point whose leaves are multiplied.
    num_leaves: Number of leaves of the tree.
    growth: Size of the corpus, relative to the sample.
  """
  leaves = min(num_leaves, round(growth * point.leaves_searched))
  return _measure(search, truth, 0.0, leaves, point.num_reordered)


def _grid(
  values: Sequence[int], low: int, high: int, fixed: int | None
) -> list[int]:
  """Returns the values to try, limited to a range."""
  values = values if fixed is None else [fixed]
  return sorted({max(low, min(v, high)) for v in values})


def _measure(
  search: Search,
  truth: GroundTruth,
  target: float,
  leaves_searched: int,
  num_reordered: int,
) -> Point:
  seconds: list[float] = []
  recall = 0.0
  # The speed of a point below the target does not matter.
  while not seconds or (recall >= target and len(seconds) < _REPEATS):
    start = time.perf_counter()
    found = search(truth.queries, truth.k, leaves_searched, num_reordered)
    seconds.append(time.perf_counter() - start)
    recall = truth.recall(found)
  return Point(
    leaves_searched=leaves_searched,
    num_reordered=num_reordered,
    recall=recall,
    queries_per_second=len(truth.kth_score) / min(seconds),
  )


def choose_structure(
  start: Structure,
  variants: Iterable[Variant],
  measure: Callable[[Structure], tuple[Point, list[Point]]],
  *,
  target: float,
  num_blocks: int,
  sampled: int,
  may_vary_leaves: bool = True,
) -> tuple[Structure, list[Trial]]:
  """Tries one change after another, and keeps those that are faster.

  Args:
    start: Structure to change.
    variants: Changes to try, each on top of those that were kept.
    measure: Function that builds a tree over a sample and returns
      `fastest_point`.
    target: Target of the recall.
    num_blocks: Number of blocks, N, for which speeds are predicted.
    sampled: Number of blocks in the trees of `measure`.
    may_vary_leaves: Whether to try more and fewer leaves, before the variants.

  Returns:
    The best structure, and all trials.
  """
  costs = Costs(num_blocks=num_blocks, sampled=sampled)

  def attempt(structure: Structure) -> Trial:
    point, points = measure(structure)
    costs.learn(structure, [p for p in points if p.recall >= target])
    return Trial(structure, point, 0.0)

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
  best = attempt(start)
  trials = [best]
  for change, gain in (*leaves, *variants):
    trial = attempt(dataclasses.replace(best.structure, **change))
    trials.append(trial)
    # Below the target, the higher recall is better.
    if speed(best) == 0:
      is_better = speed(trial) > 0 or trial.point.recall > best.point.recall
    else:
      is_better = speed(trial) > gain * speed(best)
    best = trial if is_better else best
  return best.structure, [
    dataclasses.replace(trial, predicted=speed(trial)) for trial in trials
  ]


class Costs:
  """Predicts a search's time on the whole corpus from a sample.

  The time of a query is modeled as a constant plus a cost for each leaf of the
  tree, each leaf that is searched, each vector in those, and each vector that
  is scored again. The vectors in the leaves grow with the corpus.

  Args:
    num_blocks: Number of blocks, N.
    sampled: Number of blocks in the measured trees.
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
