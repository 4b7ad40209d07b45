"""Chooses how a tree is made and how much of it is searched, by measuring.

A point is how many leaves are searched and how many vectors are scored again.
Of a tree, the fastest point that meets the recall target is chosen; of several
trees over a sample of the corpus, the one whose point would be fastest on all
of it.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.optimize
from jaxtyping import Float32

from realm_jax.indexes.protocol import QueryBatch, SearchResult
from realm_jax.indexes.scann.files import Structure

# Scores this close, relative to the score, are equal: of blocks that say the
# same, any will do.
TIE = 1e-5
_REPEATS = 5
# With a point this much slower than the best, no more leaves are tried.
_HOPELESS = 1.5
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REORDERED = (16, 32, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)

# A search of a point: (queries, k, leaves searched, reordered) -> found.
Search = Callable[[QueryBatch, int, int, int], SearchResult]


@dataclasses.dataclass(frozen=True)
class Truth:
  """What exact search finds for a sample of queries.

  Attributes:
    queries: with vectors.
    k: of recall@k.
    worst: [b], the score of each query's k-th best block.
    score: `(rows [b, k]) -> scores` of found blocks, in float32.
  """

  queries: QueryBatch
  k: int
  worst: Float32[np.ndarray, " b"]
  score: Callable[[np.ndarray], Float32[np.ndarray, "b k"]]

  def recall(self, found: SearchResult) -> float:
    """The share of found blocks that score no worse than the k-th best."""
    worst = self.worst[:, None]
    scores = self.score(found.rows)
    return float(np.mean(scores >= worst - TIE * abs(worst)))


@dataclasses.dataclass(frozen=True)
class Point:
  """A setting of the search, and what it gave.

  Attributes:
    leaves_searched: of the tree.
    num_reordered: vectors scored again.
    recall: at the target's k.
    queries_per_second: of all queries in one batch; the best of a few times.
  """

  leaves_searched: int
  num_reordered: int
  recall: float
  queries_per_second: float


def fastest_point(
  search: Search,
  truth: Truth,
  *,
  target: float,
  num_leaves: int,
  num_blocks: int,
  leaves_searched: int | None = None,
  num_reordered: int | None = None,
) -> tuple[Point, list[Point]]:
  """The fastest point that meets the target, and all that were measured.

  Where none does, the point of the best recall. For each number of leaves, the
  fewest reordered vectors that do are found by bisection, if they are fewer
  than with fewer leaves; until leaves cost more than they save.

  Args:
    search: of the tree.
    truth: what to find.
    target: of the recall.
    num_leaves: of the tree.
    num_blocks: N.
    leaves_searched: fixes this; None chooses.
    num_reordered: fixes this; None chooses.
  """
  k = truth.k
  leaves = _grid(_LEAVES, 1, num_leaves, leaves_searched)
  reordered = _grid(_REORDERED, k, num_blocks, num_reordered)
  measured: dict[tuple[int, int], Point] = {}

  def at(searched: int, again: int) -> Point:
    place = searched, again
    if place not in measured:
      measured[place] = _measure(search, truth, target, *place)
    return measured[place]

  best: Point | None = None
  before = -1.0
  for searched in leaves:
    # More leaves are worth it for fewer reordered alone.
    most = best.num_reordered if best is not None else num_blocks + 1
    fewer = [again for again in reordered if again < most]
    if not fewer:
      break
    if (recall := at(searched, fewer[-1]).recall) < target:
      if best is not None and recall <= before:
        break  # It is not for leaves that so few reordered do not do.
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
      # So few reordered were tried with no fewer leaves.
      best, before = point, -1.0
    elif point.queries_per_second * _HOPELESS < best.queries_per_second:
      break
  points = list(measured.values())
  return best or max(points, key=lambda p: p.recall), points


def point_of_as_many(
  search: Search,
  truth: Truth,
  point: Point,
  *,
  num_leaves: int,
  growth: float,
) -> Point:
  """A point of a sample that looks at as many vectors as one of the corpus.

  Args:
    search: of the sample's tree.
    truth: what to find.
    point: of the corpus.
    num_leaves: of the tree.
    growth: how many times the sample the corpus is.
  """
  leaves = min(num_leaves, round(growth * point.leaves_searched))
  return _measure(search, truth, 0.0, leaves, point.num_reordered)


def _grid(
  values: Sequence[int], least: int, most: int, fixed: int | None
) -> list[int]:
  if fixed is not None:
    return [max(least, min(fixed, most))]
  return sorted({max(least, min(v, most)) for v in values})


def _measure(
  search: Search,
  truth: Truth,
  target: float,
  leaves_searched: int,
  num_reordered: int,
) -> Point:
  seconds: list[float] = []
  recall = 0.0
  # How fast a miss is, is of no interest.
  while not seconds or (recall >= target and len(seconds) < _REPEATS):
    start = time.perf_counter()
    found = search(truth.queries, truth.k, leaves_searched, num_reordered)
    seconds.append(time.perf_counter() - start)
    recall = truth.recall(found)
  return Point(
    leaves_searched=leaves_searched,
    num_reordered=num_reordered,
    recall=recall,
    queries_per_second=len(truth.worst) / min(seconds),
  )


@dataclasses.dataclass(frozen=True)
class Trial:
  """A structure that was tried, and its chosen point on the sample.

  Attributes:
    structure: of the tree.
    point: see `fastest_point`.
    predicted: queries per second over the whole corpus; 0 below the target.
  """

  structure: Structure
  point: Point
  predicted: float


# Another structure must be this much faster: times scatter.
GAIN = 1.05
# Of as many leaves as it begins with; the best may lie beyond a worse one.
_LEAF_FACTORS = (2, 4, 8, 0.5, 0.25)
_MOST_LEAVES_PER_BLOCK = 1 / 16


def choose_structure(
  start: Structure,
  variants: Iterable[tuple[dict[str, Any], float]],
  measure: Callable[[Structure], tuple[Point, list[Point]]],
  *,
  target: float,
  num_blocks: int,
  sampled: int,
  may_vary_leaves: bool = True,
) -> tuple[Structure, list[Trial]]:
  """Tries one change after another, and keeps those that are faster.

  Args:
    start: what to change.
    variants: fields and the values to try, each on top of what was kept, and
      how much faster each must be to be kept.
    measure: makes a tree over a sample and measures it: `fastest_point`.
    target: of the recall.
    num_blocks: N, for which times are predicted.
    sampled: how many blocks the trees of `measure` hold.
    may_vary_leaves: whether to try more and fewer leaves, first of all.

  Returns:
    The best structure, and what was tried.
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

  best = attempt(start)
  tried = [best]

  def consider(structure: Structure, gain: float) -> None:
    nonlocal best
    trial = attempt(structure)
    tried.append(trial)
    # Below the target, what comes nearer is better.
    if speed(best) == 0:
      is_better = speed(trial) > 0 or trial.point.recall > best.point.recall
    else:
      is_better = speed(trial) > gain * speed(best)
    best = trial if is_better else best

  if may_vary_leaves:
    for factor in _LEAF_FACTORS:
      leaves = int(start.num_leaves * factor)
      if 1 <= leaves <= sampled * _MOST_LEAVES_PER_BLOCK:
        consider(dataclasses.replace(start, num_leaves=leaves), GAIN)
  for change, gain in variants:
    consider(dataclasses.replace(best.structure, **change), gain)
  return best.structure, [
    dataclasses.replace(trial, predicted=speed(trial)) for trial in tried
  ]


class Costs:
  """What searching costs, learnt on a sample and foretold of all the corpus.

  A query's time is taken as a sum: a constant, and so much for each leaf there
  is, each that is searched, each vector in those, and each vector that is
  scored again. Vectors in the leaves grow with the corpus.

  Args:
    num_blocks: N.
    sampled: how many blocks the measured trees hold.
  """

  def __init__(self, *, num_blocks: int, sampled: int):
    self._num_blocks, self._sampled = num_blocks, sampled
    self._terms: list[list[float]] = []
    self._seconds: list[float] = []

  def learn(self, structure: Structure, points: Iterable[Point]) -> None:
    """Takes in what was measured on the sample."""
    for point in points:
      self._terms.append(self._work(structure, point, self._sampled))
      self._seconds.append(1 / point.queries_per_second)

  def queries_per_second(self, structure: Structure, point: Point) -> float:
    """Of a point of the sample, on all of the corpus."""
    if self._sampled == self._num_blocks:
      return point.queries_per_second
    terms, seconds = np.array(self._terms), np.array(self._seconds)
    # Errors count by their share of the time, and nothing costs less than 0.
    scale = terms.max(axis=0)
    weighted = terms / scale / seconds[:, None]
    costs, _ = scipy.optimize.nnls(weighted, np.ones(len(seconds)))
    there, here = (
      np.array(self._work(structure, point, count)) / scale @ costs
      for count in (self._num_blocks, self._sampled)
    )
    return point.queries_per_second * float(here / there)

  def _work(
    self, structure: Structure, point: Point, num_blocks: int
  ) -> list[float]:
    searched = point.leaves_searched
    rows = searched / structure.num_leaves * num_blocks
    rows *= 1 + structure.spilled
    leaves = structure.num_leaves
    return [1.0, leaves, searched, rows, point.num_reordered]
