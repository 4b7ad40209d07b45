"""Batches of about one length each: little padding in few compiled shapes."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import NULL_ROW

# Lengths of batches are multiples of it, for the sake of vector units.
_STEP = 8


def choose_lengths(
  lengths: Int[np.ndarray, " n"],
  *,
  longest: int,
  most: int = 16,
  padding: float = 1.05,
) -> tuple[int, ...]:
  """The lengths of batches that leave little padding, rising.

  Of all ways to round lengths up to so many it takes the one with the fewest
  tokens, and no more lengths than `padding` asks for: each compiles once.

  Args:
    lengths: tokens of each row.
    longest: what no row is longer than.
    most: how many there may be.
    padding: tokens computed on over tokens of the rows that is low enough.
  """
  if most < 1:
    raise ValueError(f"most={most}; want at least one length of batches")
  useful = int(np.minimum(lengths, longest).sum())
  rounded = np.minimum(-(-lengths // _STEP) * _STEP, longest)
  values, counts = np.unique(rounded, return_counts=True)
  below = np.concatenate([[0], np.cumsum(counts)])
  # tokens[i]: the fewest for the rows of the first i values; after[k][i]: where
  # the last of k lengths begins.
  tokens = np.where(np.arange(len(values) + 1) == 0, 0.0, np.inf)
  begins = []
  for _ in range(min(most, len(values))):
    # Column j: the last length is values[j]; row i: it begins at values[i].
    rows = np.maximum(below[None, 1:] - below[:-1, None], 0)
    total = tokens[:-1, None] + rows * values[None, :]
    total[np.tril_indices(len(values), -1)] = np.inf
    begins.append(np.argmin(total, axis=0))
    tokens = np.concatenate([[np.inf], total.min(axis=0)])
    if tokens[-1] <= padding * useful:
      break
  chosen, end = [], len(values)
  for begin in reversed(begins):
    chosen.append(int(values[end - 1]))
    end = int(begin[end - 1])
  return tuple(reversed(chosen))


def round_up(
  lengths: Int[np.ndarray, " n"], to: Sequence[int]
) -> Int[np.ndarray, " n"]:
  """Each length as its batch has it; those beyond all are cut to the last."""
  place = np.searchsorted(to, lengths)
  return np.asarray(to)[np.minimum(place, len(to) - 1)]


def length_batches(
  rows: Int[np.ndarray, " n"],
  lengths: Int[np.ndarray, " n"],
  *,
  to: Sequence[int],
  tokens_per_batch: int,
  multiple: int = 1,
) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
  """Batches of rows of about one length; a shape for each length.

  Rows go shortest first. Those that do not fill a batch go along with the
  next longer ones, so that only the last batch holds padding rows.

  Args:
    rows: which to embed.
    lengths: tokens of each.
    to: the lengths of batches, rising.
    tokens_per_batch: rows times length, about.
    multiple: the number of rows is a multiple of this.

  Yields:
    A length and rows, of which the last batch's may be `NULL_ROW`.
  """
  rounded = round_up(lengths, to)
  waiting = np.zeros(0, np.int64)
  size, length = multiple, to[-1]
  for length in np.unique(rounded).tolist():
    size = max(1, tokens_per_batch // length // multiple) * multiple
    waiting = np.concatenate([waiting, rows[rounded == length]])
    while len(waiting) >= size:
      yield length, waiting[:size]
      waiting = waiting[size:]
  if len(waiting):
    padding = size - len(waiting)
    yield length, np.pad(waiting, (0, padding), constant_values=NULL_ROW)
