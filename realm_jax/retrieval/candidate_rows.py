"""Which of the retrieved blocks become candidates; part of the numeric core."""

import numpy as np
from jaxtyping import Bool, Int

NULL_ROW = -1


def without_source(
  rows: Int[np.ndarray, "b n"],
  is_source: Bool[np.ndarray, "b n"],
  *,
  num_kept: int,
) -> Int[np.ndarray, "b {num_kept}"]:
  """Returns each query's first blocks that are not the one it came from.

  Retrieval of the source would be trivial, since it contains the masked words
  (section 3.4). `is_source` marks it and its verbatim copies. Where these leave
  fewer than `num_kept` blocks, the null block takes the last places.
  """
  order = np.argsort(is_source, axis=1, kind="stable")[:, :num_kept]
  kept = np.take_along_axis(rows, order, axis=1)
  dropped = np.take_along_axis(is_source, order, axis=1)
  return np.where(dropped, np.asarray(NULL_ROW, rows.dtype), kept)


def with_null(rows: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n+1"]:
  """Adds the null block in front, where it is always candidate 0."""
  return np.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)
