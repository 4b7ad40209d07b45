"""Batches of blocks of similar length, with little padding."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import NULL_ROW


def length_multiple(platform: str) -> int:
  """Returns what lengths of batches are multiples of.

  On TPUs it is the height of a tile of bfloat16, which the attention kernel
  wants; elsewhere the width of vector units.
  """
  return 16 if platform == "tpu" else 8


def choose_lengths(
  lengths: Int[np.ndarray, " n"],
  *,
  longest: int,
  multiple: int = 8,
  max_lengths: int = 16,
  max_padding: float = 1.05,
) -> tuple[int, ...]:
  """Chooses the batch lengths, in rising order, that leave the least padding.

  Each is compiled, so there are no more than are needed for at most
  `max_padding` computed tokens per token of the rows. They are multiples of
  `multiple`, or `longest`. Rows with more tokens than that are cut.
  """
  if max_lengths < 1:
    raise ValueError(
      f"num_lengths={max_lengths}; want at least one length of batches"
    )
  useful = int(np.minimum(lengths, longest).sum())
  rounded = -(-lengths // multiple) * multiple
  rounded = np.minimum(rounded, longest)
  values, counts = np.unique(rounded, return_counts=True)
  below = np.concatenate([[0], np.cumsum(counts)])
  # Dynamic programming over the number of lengths. tokens[i] is the lowest
  # number of tokens for the rows of the first i values.
  tokens = np.where(np.arange(len(values) + 1) == 0, 0.0, np.inf)
  begins = []
  for _ in range(min(max_lengths, len(values))):
    # Column j: the longest batches have length values[j]. Row i: they hold the
    # rows from values[i] on.
    rows = np.maximum(below[None, 1:] - below[:-1, None], 0)
    total = tokens[:-1, None] + rows * values[None, :]
    total[np.tril_indices(len(values), -1)] = np.inf
    begins.append(np.argmin(total, axis=0))
    tokens = np.concatenate([[np.inf], total.min(axis=0)])
    if tokens[-1] <= max_padding * useful:
      break
  chosen, end = [], len(values)
  for begin in reversed(begins):
    chosen.append(int(values[end - 1]))
    end = int(begin[end - 1])
  return tuple(reversed(chosen))


def round_up(
  lengths: Int[np.ndarray, " n"], batch_lengths: Sequence[int]
) -> Int[np.ndarray, " n"]:
  """Rounds up to the next batch length; longer rows are cut to the last."""
  place = np.searchsorted(batch_lengths, lengths)
  return np.asarray(batch_lengths)[np.minimum(place, len(batch_lengths) - 1)]


def rows_per_batch(
  length: int, tokens_per_batch: int, *, multiple: int = 1
) -> int:
  """Returns the rows of a batch: a multiple of `multiple`, and not 0."""
  return max(1, tokens_per_batch // length // multiple) * multiple


def length_batches(
  rows: Int[np.ndarray, " n"],
  lengths: Int[np.ndarray, " n"],
  *,
  batch_lengths: Sequence[int],
  tokens_per_batch: int,
  multiple: int = 1,
) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
  """Yields the length and the rows of batches, shortest first.

  Rows that do not fill a batch join the next longer ones; only the last batch
  is padded, with `NULL_ROW`.

  The `rows` have `lengths` tokens, and `batch_lengths` rise. A batch has about
  `tokens_per_batch` rows times length, and a multiple of `multiple` rows.
  """
  rounded = round_up(lengths, batch_lengths)
  waiting = np.zeros(0, np.int64)
  size, length = multiple, batch_lengths[-1]
  for length in np.unique(rounded).tolist():
    size = rows_per_batch(length, tokens_per_batch, multiple=multiple)
    waiting = np.concatenate([waiting, rows[rounded == length]])
    while len(waiting) >= size:
      yield length, waiting[:size]
      waiting = waiting[size:]
  if len(waiting):
    padding = size - len(waiting)
    yield length, np.pad(waiting, (0, padding), constant_values=NULL_ROW)
