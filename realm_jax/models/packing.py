"""Packing of sequences into rows, on the host."""

import zlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32, UInt32

from realm_jax.models.arrays import AnyArray
from realm_jax.models.sequences import NO_SEQUENCE, PAD_ID, Sequences


class TokenRows(NamedTuple):
  """Padded token sequences that an encoder will read, before they are packed.

  Attributes:
    numbers: Numbers of the sequences, which dropout masks are derived from.
  """

  token_ids: Int[AnyArray, "n l"]
  numbers: UInt32[AnyArray, " n"]


def content_numbers(
  token_ids: Int[np.ndarray, "n l"],
) -> UInt32[np.ndarray, " n"]:
  """Returns numbers of sequences that follow from their tokens alone.

  Equal sequences get the same number, and so the same dropout masks.
  """
  rows = np.ascontiguousarray(token_ids, np.int32)
  return np.array([zlib.crc32(row) for row in rows], np.uint32)


class PackingPlan(NamedTuple):
  """Assignment of n = s · m sequences to rows, in s groups.

  Attributes:
    lengths: Number of tokens of each sequence.
    row: Row of its group to which each sequence is assigned.
    offset: Index of its first token in that row.
    num_rows: Number of rows that the fullest group needs.
  """

  lengths: Int[np.ndarray, "s m"]
  row: Int[np.ndarray, "s m"]
  offset: Int[np.ndarray, "s m"]
  row_length: int
  num_rows: int


def plan_rows(lengths: Int[np.ndarray, "s m"], row_length: int) -> PackingPlan:
  """Packs each group by best fit, longest first.

  Raises:
    ValueError: A sequence is longer than a row.
  """
  if lengths.size and lengths.max() > row_length:
    raise ValueError(
      f"a sequence of {lengths.max()} tokens does not fit in a row of "
      f"{row_length}"
    )
  row, offset = np.zeros_like(lengths), np.zeros_like(lengths)
  used = [
    _best_fit(*group, row_length)
    for group in zip(lengths, row, offset, strict=True)
  ]
  return PackingPlan(lengths, row, offset, row_length, max(1, *used))


def one_per_row(
  lengths: Int[np.ndarray, "s m"], row_length: int
) -> PackingPlan:
  """Gives each sequence a row of its own."""
  row = np.broadcast_to(np.arange(lengths.shape[1]), lengths.shape)
  return PackingPlan(
    lengths, row, np.zeros_like(lengths), row_length, lengths.shape[1]
  )


def _best_fit(
  lengths: Int[np.ndarray, " m"],
  row: Int[np.ndarray, " m"],
  offset: Int[np.ndarray, " m"],
  row_length: int,
) -> int:
  """Fills `row` and `offset`; returns the number of rows."""
  rows_with: list[list[int]] = [[] for _ in range(row_length + 1)]
  # Bit s is set where a row has s tokens left.
  spaces = 0
  num_rows = 0
  for index in np.argsort(-lengths, kind="stable").tolist():
    length = int(lengths[index])
    fitting = spaces >> length
    if fitting:
      space = length + (fitting & -fitting).bit_length() - 1
      chosen = rows_with[space].pop()
      if not rows_with[space]:
        spaces &= ~(1 << space)
    else:
      space, chosen = row_length, num_rows
      num_rows += 1
    row[index], offset[index] = chosen, row_length - space
    rows_with[space - length].append(chosen)
    spaces |= 1 << (space - length)
  return num_rows


def lay_out(plan: PackingPlan, rows: TokenRows, *, num_rows: int) -> Sequences:
  """Returns the sequences in the rows that a plan assigns.

  `num_rows` is the number of rows of each group, at least the plan's.
  """
  groups, size = plan.lengths.shape
  lengths = plan.lengths.reshape(-1)
  starts = plan.row * plan.row_length + plan.offset
  first = starts + np.arange(groups)[:, None] * num_rows * plan.row_length
  # For each token its sequence, and its position in that.
  owner = np.repeat(np.arange(groups * size), lengths)
  position = np.arange(lengths.sum()) - np.repeat(
    np.cumsum(lengths) - lengths, lengths
  )
  target = first.reshape(-1)[owner] + position
  shape = (groups * num_rows, plan.row_length)

  def scattered(
    values: Int[np.ndarray, " t"], filler: int
  ) -> Int32[np.ndarray, "r l"]:
    flat = np.full(shape[0] * shape[1], filler, np.int32)
    flat[target] = values
    return flat.reshape(shape)

  return Sequences(
    token_ids=scattered(np.asarray(rows.token_ids)[owner, position], PAD_ID),
    sequence=scattered(owner % size, NO_SEQUENCE),
    position=scattered(position, 0),
    starts=starts.astype(np.int32),
    numbers=rows.numbers.reshape(groups, size),
  )
