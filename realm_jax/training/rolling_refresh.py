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
from realm_jax.models.sequences import Sequences
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, MODEL_AXIS
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

  def with_rows(self, count: int) -> "DatedVectors":
    """Returns abstract arrays with another number of rows."""
    return jax.tree.map(
      lambda array: jax.ShapeDtypeStruct(
        (count, *array.shape[1:]), array.dtype, sharding=self.sharding
      ),
      self,
    )

  def as_of(self, step: Int[Array, ""]) -> "DatedVectors":
    """Returns the same, for a step whose parameters give the same vectors."""
    is_block = self.steps != NO_BLOCK
    return self._replace(steps=jnp.where(is_block, step, NO_BLOCK))

  def padded_like(self, other: "DatedVectors") -> "DatedVectors":
    """Returns the same with the rows of padding, and the sharding, of another.

    The arrays may be numpy's, which every process has in full.
    """
    count = len(other.steps)
    if isinstance(self.steps, np.ndarray):
      padded = _padded(self, count, np)
      return jax.tree.map(
        lambda array: jax.make_array_from_callback(
          array.shape, other.sharding, array.__getitem__
        ),
        padded,
      )
    resize = functools.partial(_padded, count=count, library=jnp)
    return jax.jit(resize, out_shardings=other.sharding)(self)


def _padded(dated: DatedVectors, count: int, library: Any) -> DatedVectors:
  """Adds or takes away rows of padding, with numpy or jax.numpy."""
  added = max(0, count - len(dated.steps))
  return DatedVectors(
    library.pad(dated.vectors, ((0, added), (0, 0)))[:count],
    library.pad(dated.steps, (0, added), constant_values=NO_BLOCK)[:count],
  )


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
    return _of_group(sequences), _Taken(rows, is_block & fits)

  def put(
    dated: DatedVectors, taken: _Taken, vectors: Float[Array, "g d"]
  ) -> DatedVectors:
    own = lax.axis_index(MODEL_AXIS) * part.num_blocks
    vectors = lax.dynamic_slice_in_dim(vectors, own, part.num_blocks)
    # Rows past the last are dropped.
    rows = jnp.where(taken.is_taken, taken.rows, len(dated.steps))
    return DatedVectors(
      dated.vectors.at[rows].set(
        vectors.astype(dated.vectors.dtype), mode="drop"
      ),
      dated.steps.at[rows].set(step, mode="drop"),
    )

  divided: Any = PartitionSpec(MESH_AXES)
  by_group: Any = PartitionSpec(BATCH_AXES)
  sequences, taken = jax.shard_map(
    take,
    mesh=mesh,
    in_specs=(divided, BlockArrays.partitions()),
    out_specs=(by_group, divided),
    check_vma=False,
  )(dated.steps, blocks)
  vectors = retriever.apply(
    {"params": params}, sequences, method="embed_blocks"
  )
  return jax.shard_map(
    put,
    mesh=mesh,
    in_specs=(divided, divided, by_group),
    out_specs=divided,
    check_vma=False,
  )(dated, taken, vectors)


def _lay_out(
  blocks: TokenRows, part: Slice
) -> tuple[Sequences, Bool[Array, " w"]]:
  """Returns the blocks in rows, and which of them fit: the first so many."""
  lengths = packing.lengths_of(blocks, groups=1)
  if not part.packs:
    fits = jnp.ones(part.num_blocks, bool)
    return packing.one_per_row(blocks, lengths), fits
  length = blocks.token_ids.shape[1]
  plan = packing.plan_rows(
    lengths, row_length=length, num_rows=part.num_rows, longest_first=False
  )
  fits = jnp.cumprod(plan.starts[0] < part.num_rows * length).astype(bool)
  plan = plan._replace(lengths=jnp.where(fits, plan.lengths, 0))
  return packing.lay_out(plan, blocks, num_rows=part.num_rows), fits


def _of_group(own: Sequences) -> Sequences:
  """Returns the sequences of all devices that divide a model among them.

  They compute on the same rows, though each has blocks of its own.
  """
  count = lax.axis_size(MODEL_AXIS)
  if count == 1:
    return own
  index = lax.axis_index(MODEL_AXIS)
  num_sequences = own.starts.size
  own = own._replace(
    sequence=jnp.where(
      own.sequence < 0, own.sequence, own.sequence + index * num_sequences
    ),
    starts=own.starts + index * own.token_ids.size,
  )

  def all_of(part: Array, *, axis: int) -> Array:
    return lax.all_gather(part, MODEL_AXIS, axis=axis, tiled=True)

  return type(own)(
    *(all_of(jnp.asarray(part), axis=0) for part in own[:3]),
    *(all_of(jnp.asarray(part), axis=1) for part in own[3:]),
  )
