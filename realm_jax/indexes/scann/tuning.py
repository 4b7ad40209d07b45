"""Chooses how much of a tree is searched, by measuring.

A point of a tree is a number of leaves to search and a number of vectors to
score again. The fastest point that meets the recall target is chosen.
"""

import bisect
import dataclasses
import time
from collections.abc import Sequence

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.scann.index import ScannIndex

_REPEATS = 5
# If a point is this much slower than the best, no more leaves are tried.
_HOPELESS = 1.5
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REORDERED = (16, 32, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)


@dataclasses.dataclass(frozen=True)
class Point:
  """How much of a tree a search uses, as in `Tree`, and how well.

  The recall is at the k of the ground truth. The rate is that of all queries in
  one batch, the best of a few repetitions.
  """

  leaves_searched: int
  num_reordered: int
  recall: float
  queries_per_second: float


def fastest_point(
  index: ScannIndex,
  truth: GroundTruth,
  *,
  target: float,
  leaves_searched: int | None = None,
  num_reordered: int | None = None,
) -> tuple[Point, list[Point]]:
  """Returns the fastest point that meets the target, and all measured ones.

  If none meets it, the point of the best recall is returned. For each number
  of leaves, a bisection finds the fewest reordered vectors that meet it. More
  leaves are tried until they cost more than fewer reordered vectors save. A
  number that is given is kept.
  """
  assert index.tree is not None
  num_blocks, num_leaves = index.num_blocks, index.tree.num_leaves
  leaves = _grid(_LEAVES, 1, num_leaves, leaves_searched)
  reordered = _grid(_REORDERED, truth.k, num_blocks, num_reordered)
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
  assert index.tree is not None
  index.tree = index.tree._replace(
    leaves_searched=leaves_searched, num_reordered=num_reordered
  )
  seconds: list[float] = []
  recall = 0.0
  # The speed of a point below the target does not matter.
  while not seconds or (recall >= target and len(seconds) < _REPEATS):
    start = time.perf_counter()
    found = index.search(truth.queries, truth.k)
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
