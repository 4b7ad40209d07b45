"""Which of the blocks found become candidates: pure, part of the core."""

import numpy as np
from jaxtyping import Float, Int

NULL_ROW = -1


def without_source(
  rows: Int[np.ndarray, "b n"],
  scores: Float[np.ndarray, "b n"],
  source_rows: Int[np.ndarray, "b"],
) -> tuple[Int[np.ndarray, "b n-1"], Float[np.ndarray, "b n-1"]]:
  """Drops from each row the block that its query came from (section 3.4).

  Retrieval of the source would be trivial: the masked words stand in it. A
  row in which the source was not found drops its last block instead.

  Args:
    rows: blocks found, best first.
    scores: their scores.
    source_rows: the row of each query's own block; −1 where it has none.
  """
  is_dropped = rows == source_rows[:, None]
  not_found = ~is_dropped.any(axis=1)
  is_dropped[not_found, -1] = True
  kept = np.argsort(is_dropped, axis=1, kind="stable")[:, :-1]
  return (
    np.take_along_axis(rows, kept, axis=1),
    np.take_along_axis(scores, kept, axis=1),
  )


def with_null(rows: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n+1"]:
  """Puts the null block in front: always candidate 0."""
  return np.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)
