"""How a step lays out the sequences that its encoders read, in rows.

Sequences have different lengths. Packed, several share a row, so that a step
computes on hardly any padding. A compiled program has rows of fixed numbers:
it holds the computation several times, for numbers of rows from the usual ones
to one row for each sequence, and takes the first that hold the sequences of all
devices.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int

from realm_jax.models import packing, sequences
from realm_jax.models.packing import TokenRows
from realm_jax.partitioning.mesh import BATCH_AXES
from realm_jax.training.encoder_rows import EncoderRows

B = TypeVar("B")
T = TypeVar("T")

# The number of rows in each group (`packing.num_groups`) of a device, for each
# encoder input, in the order of the fields of `EncoderRows`.
RowCounts = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RowLayout:
  """Lays out encoder inputs in rows, on every device for itself.

  Attributes:
    mesh: Mesh of all devices.
    row_counts: Numbers of rows of packed sequences, the usual ones first.
      Without any, each sequence has a row of its own.
  """

  mesh: Mesh
  row_counts: tuple[RowCounts, ...] = ()

  @property
  def num_devices(self) -> int:
    """Number of devices that divide the batch."""
    return math.prod(self.mesh.shape[axis] for axis in BATCH_AXES)

  def with_rows(
    self,
    rows_of: Callable[[B], EncoderRows],
    batch: B,
    compute: Callable[[EncoderRows], T],
  ) -> T:
    """Returns what a function computes of the encoder inputs of a batch.

    It is traced once for each number of rows. Whoever wants a gradient takes it
    in this function: the derivative of this method itself would keep what all
    of its branches need.

    Args:
      rows_of: Function that makes the encoder inputs of examples.
      batch: Tree of arrays with a row for each example.
      compute: Function of the inputs, laid out in rows.
    """
    if not self.row_counts:
      padded = self._on_each_device(lambda part: _padded(rows_of(part)), batch)
      return compute(padded)

    def laid_out(part: B) -> tuple[list[EncoderRows], Any]:
      rows = rows_of(part)
      plans = [
        _plan(one, num_rows=max(numbers))
        for one, numbers in zip(
          encoder_inputs(rows), zip(*self.row_counts, strict=True), strict=True
        )
      ]
      needed = jnp.stack([plan.needed_rows.max() for plan in plans])
      too_few = (needed[None, :] > jnp.array(self.row_counts)).any(axis=1)
      layouts = [_packed(rows, plans, counts) for counts in self.row_counts]
      layouts.append(_padded(rows))
      return layouts, lax.pmax(jnp.sum(too_few), BATCH_AXES)

    # The rows of all branches are made outside of them: computed in a branch,
    # XLA would compute them again for each of the layers that use them.
    by_device, everywhere = PartitionSpec(BATCH_AXES), PartitionSpec()
    layouts, smallest = self._on_each_device(
      laid_out, batch, out_specs=(by_device, everywhere)
    )

    def of_layout(number: int) -> Callable[[list[EncoderRows]], T]:
      return lambda layouts: compute(layouts[number])

    branches = [of_layout(number) for number in range(len(layouts))]
    return lax.switch(smallest, branches, layouts)

  def _on_each_device(
    self, function: Callable[[Any], T], given: Any, *, out_specs: Any = None
  ) -> T:
    by_device = PartitionSpec(BATCH_AXES)
    return jax.shard_map(
      function,
      mesh=self.mesh,
      in_specs=by_device,
      out_specs=by_device if out_specs is None else out_specs,
      check_vma=False,
    )(given)


def encoder_inputs(rows: EncoderRows) -> list[TokenRows]:
  """Returns those encoder inputs that a stage has, in their order."""
  return [one for one in rows if isinstance(one, TokenRows)]


def needed_rows(rows: EncoderRows) -> Int[Array, " e"]:
  """Returns how many rows the fullest group needs, of each encoder input."""
  plans = [_plan(one) for one in encoder_inputs(rows)]
  return jnp.stack([plan.needed_rows.max() for plan in plans])


def _plan(rows: TokenRows, *, num_rows: int | None = None) -> packing.Plan:
  """Plans the rows of each group, by default as many as it has sequences."""
  count, length = rows.token_ids.shape
  lengths = packing.lengths_of(rows, groups=packing.num_groups(count))
  return packing.plan_rows(
    lengths, row_length=length, num_rows=num_rows or lengths.shape[1]
  )


def _packed(
  rows: EncoderRows, plans: list[packing.Plan], counts: RowCounts
) -> EncoderRows:
  remaining = iter(zip(plans, counts, strict=True))

  def laid_out(one: Any) -> Any:
    if not isinstance(one, TokenRows):
      return one
    plan, num_rows = next(remaining)
    return packing.lay_out(plan, one, num_rows=num_rows)

  return EncoderRows(*map(laid_out, rows))


def _padded(rows: EncoderRows) -> EncoderRows:
  def laid_out(one: Any) -> Any:
    if not isinstance(one, TokenRows):
      return one
    return sequences.padded(*one)

  return EncoderRows(*map(laid_out, rows))
