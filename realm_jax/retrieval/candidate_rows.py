"""Which of the retrieved blocks become candidates; part of the numeric core."""

import numpy as np
from jaxtyping import Int

NULL_ROW = -1


def without_source(
  rows: Int[np.ndarray, "b n"], source_rows: Int[np.ndarray, " b"]
) -> Int[np.ndarray, "b n-1"]:
  """Drops from each row the block that its query came from (section 3.4).

  Retrieval of the source would be trivial, since it contains the masked words.
  A query without a source among its blocks, or with −1 for none, drops its
  last block instead.
  """
  is_dropped = rows == source_rows[:, None]
  is_dropped[~is_dropped.any(axis=1), -1] = True
  kept = np.argsort(is_dropped, axis=1, kind="stable")[:, :-1]
  return np.take_along_axis(rows, kept, axis=1)


def with_null(rows: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n+1"]:
  """Adds the null block in front, where it is always candidate 0."""
  return np.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)
