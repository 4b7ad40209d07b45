"""Lays out the token sequences of a batch in rows.

Packed, several sequences share a row, so that a step computes on hardly any
padding. Padded, each sequence has a row of its own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from realm_jax.models import packing
from realm_jax.models.sequences import PAD_ID, PaddedSequences
from realm_jax.training.batches import EncoderInput, StepBatch

# The number of rows in each group, for each encoder input of a batch, in the
# order of the batch's fields.
ShapeBucket = tuple[int, ...]


def _is_encoder_input(node: Any) -> bool:
  return isinstance(node, EncoderInput)


def encoder_inputs(batch: StepBatch) -> list[EncoderInput]:
  """Returns the encoder inputs of a batch, in the order of its fields."""
  leaves = jax.tree.leaves(batch, is_leaf=_is_encoder_input)
  return [leaf for leaf in leaves if _is_encoder_input(leaf)]


class Packer:
  """Lays out the batches of one stage.

  Args:
    buckets: Shape buckets from the smallest to one that holds any batch.
    groups: Number of groups of rows that this process has; sequences of two
      groups never share a row.
    pack: Whether sequences share rows.
  """

  def __init__(
    self, buckets: Sequence[ShapeBucket], *, groups: int, pack: bool = True
  ):
    self.buckets = tuple(buckets)
    self._groups = groups
    self._pack = pack

  def plan(self, batch: StepBatch) -> list[packing.PackingPlan]:
    """Plans the rows of each encoder input of a batch."""
    plan = packing.plan_rows if self._pack else packing.one_per_row
    return [
      plan(
        np.count_nonzero(rows.token_ids != PAD_ID, axis=1).reshape(
          self._groups, -1
        ),
        rows.token_ids.shape[1],
      )
      for rows in encoder_inputs(batch)
    ]

  def smallest_bucket(self, plans: Sequence[packing.PackingPlan]) -> int:
    """Returns the number of the smallest bucket that holds planned rows."""
    return next(
      number
      for number, bucket in enumerate(self.buckets)
      if all(
        rows >= plan.num_rows for rows, plan in zip(bucket, plans, strict=True)
      )
    )

  def lay_out(
    self, batch: StepBatch, plans: Sequence[packing.PackingPlan], *, bucket: int
  ) -> StepBatch:
    """Replaces the encoder inputs by rows in the shapes of a bucket."""
    remaining = iter(zip(plans, self.buckets[bucket], strict=True))

    def rows_of(node: Any) -> Any:
      if not _is_encoder_input(node):
        return node
      plan, num_rows = next(remaining)
      rows = packing.lay_out(plan, node, num_rows=num_rows)
      return rows if self._pack else PaddedSequences(*rows)

    return jax.tree.map(rows_of, batch, is_leaf=_is_encoder_input)

  def __call__(self, batch: StepBatch) -> StepBatch:
    """Lays out a batch in the smallest bucket that holds it."""
    plans = self.plan(batch)
    return self.lay_out(batch, plans, bucket=self.smallest_bucket(plans))


def needed_bucket(batch: StepBatch, *, groups: int = 1) -> ShapeBucket:
  """Returns the smallest bucket that holds a batch, packed."""
  plans = Packer([], groups=groups).plan(batch)
  return tuple(plan.num_rows for plan in plans)


def largest_bucket(batch: StepBatch, *, groups: int = 1) -> ShapeBucket:
  """Returns the bucket that holds any batch: a row for each sequence."""
  return tuple(len(rows.token_ids) // groups for rows in encoder_inputs(batch))


def padded(batch: StepBatch, *, groups: int = 1) -> StepBatch:
  """Lays out a batch with one sequence in each row."""
  bucket = largest_bucket(batch, groups=groups)
  return Packer([bucket], groups=groups, pack=False)(batch)
