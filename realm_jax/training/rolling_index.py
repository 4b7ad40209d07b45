"""The index that a run keeps itself, a slice of which each step embeds again.

Each device has its share of the blocks, vectors and tokens, and embeds those of
its own blocks that were embedded longest ago. In the order of rows this takes
it round its share again and again, so the age of a vector is bounded by the
steps of a round. Devices that divide the batch exchange nothing for it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.console import Progress
from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import Sequences
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import WaitPreemptedError
from realm_jax.training.search_in_step import (
  BlockArrays,
  SearchedBlocks,
  load_blocks,
)
from realm_jax.training.setup import RunSetup, StepSetup
from realm_jax.training.step import TrainState

# What stands for the step of a row past the last block, and of a block that
# has no vector yet.
NO_BLOCK = np.iinfo(np.int32).max
NEVER = -1
# Tokens that each device embeds at once while a new run embeds all blocks.
_TOKENS_PER_BATCH = 16_384
_BATCHES_PER_LOOK = 16


class DatedVectors(NamedTuple):
  """The vectors of all blocks, and when each was made.

  The rows are divided over all devices, and padded.

  Steps are those with whose parameters the vectors were embedded: `NEVER` if
  one was not, and `NO_BLOCK` for rows past the last block.
  """

  vectors: Float[Array, "n d"]
  steps: Int[Array, " n"]

  def as_of(self, step: Int[Array, ""]) -> "DatedVectors":
    """Returns the same, for a step whose parameters give the same vectors."""
    is_block = self.steps != NO_BLOCK
    return self._replace(steps=jnp.where(is_block, step, NO_BLOCK))


def refresh_oldest(
  params: Params,
  dated: DatedVectors,
  blocks: BlockArrays,
  step: Int[Array, ""],
  *,
  retriever: Retriever,
  num_blocks: int,
  mesh: Mesh,
) -> DatedVectors:
  """Embeds each device's oldest blocks again.

  They are one run of `num_blocks` rows on each device: that which begins with
  the first of the oldest. The parameters are the retriever's, as of the step.
  """
  divided: Any = PartitionSpec(MESH_AXES)
  on_each_device = functools.partial(
    jax.shard_map, mesh=mesh, out_specs=divided, check_vma=False
  )

  def take(
    steps: Int[Array, " n"], blocks: BlockArrays
  ) -> tuple[Sequences, Int[Array, " w"]]:
    rows = jnp.argmin(steps) + jnp.arange(num_blocks)
    kept = jnp.minimum(rows, len(steps) - 1)
    is_block = (rows < len(steps)) & (steps[kept] != NO_BLOCK)
    tokens = blocks.tokens[kept][:, : len(blocks.null_tokens)]
    inputs = retriever.block_input(tokens.astype(jnp.int32))
    # A block prefix must not turn padding into a sequence.
    inputs = jnp.asarray(inputs) * is_block[:, None]
    # Rows past the last are dropped.
    taken = jnp.where(is_block, rows, len(steps))
    return sequences.padded(inputs, blocks.marks[2][kept]), taken

  def put(
    dated: DatedVectors, rows: Int[Array, " w"], vectors: Float[Array, "w d"]
  ) -> DatedVectors:
    vectors = vectors.astype(dated.vectors.dtype)
    return DatedVectors(
      dated.vectors.at[rows].set(vectors, mode="drop"),
      dated.steps.at[rows].set(step, mode="drop"),
    )

  inputs, taken = on_each_device(
    take, in_specs=(divided, BlockArrays.partitions())
  )(dated.steps, blocks)
  # Devices that divide the model compute on the same rows, though each has
  # blocks of its own.
  inputs = lax.with_sharding_constraint(
    inputs, NamedSharding(mesh, PartitionSpec(BATCH_AXES))
  )
  vectors = retriever.apply({"params": params}, inputs, method="embed_blocks")
  return on_each_device(put, in_specs=divided)(dated, taken, vectors)


class OwnIndex:
  """The vectors and tokens of all blocks, of a run without an index builder.

  Attributes:
    refresh: Function of a step that embeds a slice again.
    searched: What a step searches, beside the vectors, which are in its state;
      None before the index is opened.

  Raises:
    ValueError: The vectors would be older than the run allows.
  """

  def __init__(
    self, setup: RunSetup, decisions: Decisions, checkpoints: Checkpointer
  ):
    self._setup = setup
    self._decisions = decisions
    self._checkpoints = checkpoints
    self.searched: SearchedBlocks | None = None
    config, total = setup.config.refresh, setup.num_blocks
    self.refresh = refresh_of(setup, config.blocks_per_step)
    # The first device has all blocks of a corpus that is small.
    share = min(total, _of_device(setup, total * setup.mesh.size))
    steps = -(-share // _of_device(setup, config.blocks_per_step))
    message = f"every block is embedded again within {steps} steps"
    limit = config.max_staleness_steps
    if limit and steps > limit:
      message += (
        f", above MAX_STALENESS_STEPS={limit}; raise BLOCKS_PER_STEP by a "
        f"factor of {steps / limit:.1f}, or the limit"
      )
      if config.on_stale == "fail":
        raise ValueError(message)
      logging.warning("%s", message)
    else:
      logging.info("%s", message)

  def open(self, state: TrainState) -> TrainState:
    """Restores the vectors of a state's checkpoint, or embeds all blocks.

    Raises:
      WaitPreemptedError: The run was preempted meanwhile.
    """
    setup, corpus = self._setup, self._setup.corpus
    block_length = setup.config.data.block_length
    blocks = load_blocks(corpus, block_length=block_length, mesh=setup.mesh)
    shapes = abstract_vectors(setup)
    found = self._checkpoints.own_vectors(
      int(state.step), corpus.fingerprint, shapes._asdict()
    )
    count = np.asarray(corpus.num_blocks, np.int32)
    self.searched = SearchedBlocks(
      query_params={},
      vectors=None,
      count=sharding.replicate(count, setup.mesh),
      blocks=blocks,
      plan=plan_of(setup),
    )
    if found is not None:
      return state._replace(index=DatedVectors(**found))
    return state._replace(index=self._embedded(state, shapes, blocks))

  def _embedded(
    self, state: TrainState, shapes: DatedVectors, blocks: BlockArrays
  ) -> DatedVectors:
    """Embeds all blocks, with the devices of the run."""
    setup, mesh = self._setup, self._setup.mesh
    capacity = len(shapes.steps)
    of_device = _TOKENS_PER_BATCH // setup.config.data.block_length
    at_once = mesh.size * _of_device(setup, of_device * mesh.size)
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    refresh = jax.jit(
      sharding.under(
        setup.config.mesh.all_axis_rules, refresh_of(setup, at_once)
      ),
      donate_argnums=1,
      out_shardings=placed,
    )

    @functools.partial(jax.jit, out_shardings=placed)
    def without_vectors() -> DatedVectors:
      is_block = jnp.arange(capacity) < setup.num_blocks
      return DatedVectors(
        jnp.zeros(shapes.vectors.shape, shapes.vectors.dtype),
        jnp.where(is_block, NEVER, NO_BLOCK).astype(jnp.int32),
      )

    dated, params = without_vectors(), state.params["retriever"]
    batches = -(-capacity // at_once)
    with Progress("blocks embedded", total=batches * at_once) as progress:
      for batch in range(batches):
        if batch % _BATCHES_PER_LOOK == 0:
          jax.block_until_ready(dated)
          preempted = self._decisions.stop_requested()
          if self._decisions.loop.exchange("preempted", preempted, any):
            raise WaitPreemptedError
        with jax.set_mesh(mesh):
          dated = refresh(params, dated, blocks, state.step)
        progress.advance(at_once)
    return dated


def _of_device(setup: StepSetup, at_once: int) -> int:
  """Returns how many blocks each device embeds, of so many on all devices."""
  devices = setup.mesh.size
  share = capacity_for(setup.num_blocks, devices=devices) // devices
  return max(1, min(-(-at_once // devices), share))


def refresh_of(setup: StepSetup, at_once: int) -> Callable[..., DatedVectors]:
  """Returns `refresh_oldest` of `at_once` blocks, on all devices together."""
  return sharding.shared_partial(
    refresh_oldest,
    retriever=setup.models.retriever,
    num_blocks=_of_device(setup, at_once),
    mesh=setup.mesh,
  )


def abstract_vectors(setup: StepSetup) -> DatedVectors:
  """Returns abstract vectors: a run's own, or those of an exact index."""
  config, dtype = setup.config, ExactConfig().dtype
  if config.keeps_own_index:
    dtype = config.refresh.rolling_refresh_dtype
  size = setup.models.retriever.vector_size
  capacity = capacity_for(setup.num_blocks, devices=setup.mesh.size)
  placed = NamedSharding(setup.mesh, PartitionSpec(MESH_AXES))
  abstract: Any = functools.partial(jax.ShapeDtypeStruct, sharding=placed)
  return DatedVectors(
    abstract((capacity, size), jnp.dtype(dtype)),
    abstract((capacity,), jnp.int32),
  )


def plan_of(setup: StepSetup) -> exact_search.Plan:
  """Returns the settings of an exact search of a step's queries."""
  mesh = setup.mesh
  return exact_search.make_plan(
    setup.num_searched,
    num_queries=setup.config.data.batch_size,
    num_rows=capacity_for(setup.num_blocks, devices=mesh.size),
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )
