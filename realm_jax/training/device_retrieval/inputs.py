"""What the encoders read, made of candidates inside a compiled program.

The functions do what `realm_jax/training/stages/model_inputs.py` and
`realm_jax/training/packing/packer.py` do on the host, for the rows of one
device of the data axis.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, UInt32

from realm_jax.models import device_packing
from realm_jax.models.arrays import AnyArray
from realm_jax.models.packing import TokenRows
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import PAD_ID
from realm_jax.partitioning.mesh import BATCH_AXES
from realm_jax.retrieval.device_candidates import Candidates
from realm_jax.training.batches import (
  EncoderInput,
  MaskTargets,
  PretrainingBatch,
)


class LaidOut(NamedTuple):
  """A batch in rows, in both shapes that a step is compiled for.

  Attributes:
    padded: Batch with a row for each sequence, which holds anything.
    packed: Batch in the usual number of rows; None where there is no packing.
    fits: Whether `packed` holds all sequences of all devices.
  """

  padded: PretrainingBatch
  packed: PretrainingBatch | None
  fits: Bool[Array, ""] | None


def lay_out(
  retriever: Retriever,
  reader: Reader,
  query: Int[AnyArray, "b q"],
  candidates: Candidates,
  masks: MaskTargets,
  *,
  bucket: tuple[int, ...] | None,
  num_parts: int,
  mesh: Mesh,
) -> LaidOut:
  """Makes a step's batch of queries and candidates.

  Args:
    retriever: Towers, for their inputs.
    reader: Reader, for its joint inputs.
    query: Queries of the global batch.
    candidates: Candidates of each query.
    masks: Masked tokens of each query.
    bucket: Rows of each group, for each encoder input; None does not pack.
    num_parts: Number of groups of rows of each device: a step's microbatches.
    mesh: Mesh of all devices.
  """

  def on_each_device(
    query: Int[Array, "b q"], candidates: Candidates, masks: MaskTargets
  ) -> LaidOut:
    blocks, block_index = _distinct_blocks(retriever, candidates, num_parts)
    joint = reader.join(query, candidates.tokens).token_ids
    # In the order of a shape bucket.
    inputs = [
      _numbered(retriever.query_input(query)),
      blocks,
      _numbered(joint.reshape(-1, joint.shape[-1])),
    ]

    def batch_of(rows: Sequence[EncoderInput]) -> PretrainingBatch:
      queries, blocks, joint = rows
      return PretrainingBatch(queries, blocks, block_index, joint, masks)

    padded = batch_of([_padded(rows, num_parts) for rows in inputs])
    if bucket is None:
      return LaidOut(padded, None, None)
    made = [
      _packed(rows, num_parts, num_rows)
      for rows, num_rows in zip(inputs, bucket, strict=True)
    ]
    fits = jnp.stack([fits for _, fits in made]).all()
    least = lax.pmin(fits.astype(jnp.int32), BATCH_AXES)
    return LaidOut(padded, batch_of([rows for rows, _ in made]), least > 0)

  by_group: Any = PartitionSpec(BATCH_AXES)
  everywhere: Any = PartitionSpec()
  partitions = LaidOut(by_group, by_group, everywhere)
  if bucket is None:
    partitions = LaidOut(by_group, None, None)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=by_group,
    out_specs=partitions,
    check_vma=False,
  )(jnp.asarray(query), candidates, masks)


def _lengths(rows: TokenRows, num_groups: int) -> Int[Array, "s m"]:
  lengths = jnp.sum(jnp.asarray(rows.token_ids) != PAD_ID, axis=1)
  return lengths.reshape(num_groups, -1)


def _padded(rows: TokenRows, num_groups: int) -> EncoderInput:
  return device_packing.one_per_row(rows, _lengths(rows, num_groups))


def _packed(
  rows: TokenRows, num_groups: int, num_rows: int
) -> tuple[EncoderInput, Bool[Array, ""]]:
  """Returns the sequences in rows, and whether these hold all of them."""
  plan = device_packing.plan_rows(
    _lengths(rows, num_groups),
    row_length=rows.token_ids.shape[1],
    num_rows=num_rows,
  )
  fits = (plan.needed_rows <= num_rows).all()
  return device_packing.lay_out(plan, rows, num_rows=num_rows), fits


def _numbered(token_ids: Any) -> TokenRows:
  """Numbers sequences over the rows of all devices."""
  count = len(token_ids)
  first = lax.axis_index(BATCH_AXES) * count
  return TokenRows(token_ids, (first + jnp.arange(count)).astype(jnp.uint32))


def _distinct_blocks(
  retriever: Retriever, candidates: Candidates, num_groups: int
) -> tuple[TokenRows, Int[Array, "b k"]]:
  """Returns each group's distinct blocks, and each candidate's number there."""
  *shape, length = candidates.tokens.shape
  tokens, numbers, index = jax.vmap(_distinct)(
    candidates.tokens.reshape(num_groups, -1, length),
    candidates.numbers.reshape(num_groups, -1),
  )
  tokens = tokens.reshape(-1, length)
  is_block = tokens.any(axis=1, keepdims=True)
  # A block prefix must not turn padding into a sequence.
  tokens = jnp.asarray(retriever.block_input(tokens)) * is_block
  return TokenRows(tokens, numbers.reshape(-1)), index.reshape(shape)


def _distinct(
  tokens: Int[Array, "m l"], numbers: UInt32[Array, " m"]
) -> tuple[Int[Array, "m l"], UInt32[Array, " m"], Int[Array, " m"]]:
  """Returns distinct blocks, in the order of their first places, and padding.

  Blocks with the same number are compared in full: where two that differ share
  a number, which happens once in billions, a copy may remain.
  """
  size = len(tokens)
  first = jnp.argmax(numbers[:, None] == numbers[None, :], axis=1)
  is_same = (tokens == tokens[first]).all(axis=1)
  first = jnp.where(is_same, first, jnp.arange(size))
  is_first = first == jnp.arange(size)
  number = jnp.cumsum(is_first) - 1
  order = jnp.argsort(~is_first, stable=True)
  is_block = jnp.arange(size) < jnp.sum(is_first)
  tokens = jnp.where(is_block[:, None], tokens[order], PAD_ID)
  return tokens, numbers[order], number[first]
