"""A rolling refresh: the vectors that are oldest are made again, in a program.

Each device has its share of the blocks, vectors and tokens, and embeds those of
its own blocks that were embedded longest ago. In the order of rows this takes
it round its share again and again, so the age of a vector is bounded by the
steps of a round. Devices that divide the batch exchange nothing for it.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import packing
from realm_jax.models.packing import TokenRows
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import Sequences, padded
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES
from realm_jax.training.token_store import BlockArrays

# What stands for the step of a row past the last block, and of a block that
# has no vector yet.
NO_BLOCK = np.iinfo(np.int32).max
NEVER = -1


class DatedVectors(NamedTuple):
  """The vectors of all blocks, and when each was made.

  The rows are divided over all devices, and padded.

  Attributes:
    vectors: Vector of each block.
    steps: Step with whose parameters it was embedded: `NEVER` if it was not,
      and `NO_BLOCK` for rows past the last block.
  """

  vectors: Float[Array, "n d"]
  steps: Int[Array, " n"]

  @classmethod
  def abstract(
    cls, capacity: int, dim: int, *, dtype: str, mesh: Mesh
  ) -> "DatedVectors":
    """Returns abstract arrays, with their shardings."""
    abstract: Any = functools.partial(
      jax.ShapeDtypeStruct,
      sharding=NamedSharding(mesh, PartitionSpec(MESH_AXES)),
    )
    return cls(
      abstract((capacity, dim), jnp.dtype(dtype)),
      abstract((capacity,), jnp.int32),
    )

  @property
  def sharding(self) -> NamedSharding:
    """How the devices divide the rows."""
    assert isinstance(self.steps.sharding, NamedSharding)
    return self.steps.sharding

  def as_of(self, step: Int[Array, ""]) -> "DatedVectors":
    """Returns the same, for a step whose parameters give the same vectors."""
    is_block = self.steps != NO_BLOCK
    return self._replace(steps=jnp.where(is_block, step, NO_BLOCK))


@dataclasses.dataclass(frozen=True)
class Slice:
  """What a device embeds at once.

  Attributes:
    num_rows: Number of rows of the block tower's input.
    num_blocks: Number of blocks at most. Unless blocks share rows, it is the
      number of rows.
  """

  num_rows: int
  num_blocks: int

  @property
  def packs(self) -> bool:
    """Whether several blocks share a row."""
    return self.num_blocks > self.num_rows


class _Taken(NamedTuple):
  """The blocks of a slice: their rows on the device, and which are embedded."""

  rows: Int[Array, " w"]
  is_taken: Bool[Array, " w"]


def refresh_oldest(
  params: Params,
  dated: DatedVectors,
  blocks: BlockArrays,
  step: Int[Array, ""],
  *,
  retriever: Retriever,
  part: Slice,
  mesh: Mesh,
) -> DatedVectors:
  """Embeds each device's oldest blocks again, as many as fit in a slice.

  They are one run of rows: that which begins with the first of the oldest.

  Args:
    params: Current parameters of the retriever.
    dated: Vectors of all blocks, which are replaced.
    blocks: Tokens of all blocks.
    step: Step of the parameters.
    retriever: Retriever whose block tower embeds them.
    part: Size of a slice.
    mesh: Mesh of all devices.
  """

  def take(
    steps: Int[Array, " n"], blocks: BlockArrays
  ) -> tuple[Sequences, _Taken]:
    rows = jnp.argmin(steps) + jnp.arange(part.num_blocks)
    kept = jnp.minimum(rows, len(steps) - 1)
    is_block = (rows < len(steps)) & (steps[kept] != NO_BLOCK)
    tokens = blocks.tokens[kept][:, : len(blocks.null_tokens)]
    inputs = retriever.block_input(tokens.astype(jnp.int32))
    # A block prefix must not turn padding into a sequence.
    inputs = jnp.asarray(inputs) * is_block[:, None]
    numbered = TokenRows(inputs, blocks.numbers[kept])
    sequences, fits = _lay_out(numbered, part)
    return sequences, _Taken(rows, is_block & fits)

  def put(
    dated: DatedVectors, taken: _Taken, vectors: Float[Array, "w d"]
  ) -> DatedVectors:
    # Rows past the last are dropped.
    rows = jnp.where(taken.is_taken, taken.rows, len(dated.steps))
    return DatedVectors(
      dated.vectors.at[rows].set(
        vectors.astype(dated.vectors.dtype), mode="drop"
      ),
      dated.steps.at[rows].set(step, mode="drop"),
    )

  divided: Any = PartitionSpec(MESH_AXES)
  sequences, taken = jax.shard_map(
    take,
    mesh=mesh,
    in_specs=(divided, BlockArrays.partitions()),
    out_specs=divided,
    check_vma=False,
  )(dated.steps, blocks)
  # Devices that divide the model compute on the same rows, though each has
  # blocks of its own.
  sequences = lax.with_sharding_constraint(
    sequences, NamedSharding(mesh, PartitionSpec(BATCH_AXES))
  )
  vectors = retriever.apply(
    {"params": params}, sequences, method="embed_blocks"
  )
  return jax.shard_map(
    put,
    mesh=mesh,
    in_specs=divided,
    out_specs=divided,
    check_vma=False,
  )(dated, taken, vectors)


def _lay_out(
  blocks: TokenRows, part: Slice
) -> tuple[Sequences, Bool[Array, " w"]]:
  """Returns the blocks in rows, and which of them fit: the first so many."""
  if not part.packs:
    return padded(*blocks), jnp.ones(part.num_blocks, bool)
  lengths = packing.lengths_of(blocks, groups=1)
  length = blocks.token_ids.shape[1]
  plan = packing.plan_rows(
    lengths, row_length=length, num_rows=part.num_rows, longest_first=False
  )
  fits = jnp.cumprod(plan.starts[0] < part.num_rows * length).astype(bool)
  plan = plan._replace(lengths=jnp.where(fits, plan.lengths, 0))
  return packing.lay_out(plan, blocks, num_rows=part.num_rows), fits
