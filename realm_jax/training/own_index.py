"""The index that a run keeps itself: filled or restored, and searched."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Int

from realm_jax.console import Progress
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.indexes.exact_search import Plan
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import WaitPreemptedError
from realm_jax.training.rolling_refresh import (
  NEVER,
  NO_BLOCK,
  DatedVectors,
  Slice,
  refresh_oldest,
)
from realm_jax.training.search_in_step import SearchedBlocks
from realm_jax.training.setup import RunSetup, StepSetup
from realm_jax.training.state import TrainState
from realm_jax.training.token_store import BlockArrays, load_blocks

# Tokens that each device embeds at once while a new run embeds all blocks.
_TOKENS_PER_BATCH = 16_384
_BATCHES_PER_LOOK = 16


def slice_of(
  setup: StepSetup,
  num_blocks: int,
  *,
  blocks_of_device: int,
  mean_length: float | None,
) -> Slice:
  """Returns a slice of about so many blocks on each device.

  Args:
    setup: Parts of the step.
    num_blocks: Number of blocks of the corpus.
    blocks_of_device: Number of blocks that each device embeds.
    mean_length: Mean number of tokens of a block, where it is known.
  """
  devices = setup.mesh.size
  share = capacity_for(num_blocks, devices=devices) // devices
  count = max(1, min(blocks_of_device, share))
  if not setup.config.pack or mean_length is None:
    return Slice(count, count)
  tokens = np.zeros((1, setup.config.data.block_length), np.int32)
  length = setup.models.retriever.block_input(tokens).shape[1]
  num_rows = math.ceil(count * min(mean_length, length) / length)
  return Slice(num_rows, count)


def slice_of_step(
  setup: StepSetup, num_blocks: int, *, mean_length: float | None
) -> Slice:
  """Returns what each device embeds again at each step, as configured."""
  blocks = setup.config.rolling_refresh.blocks_per_step
  return slice_of(
    setup,
    num_blocks,
    blocks_of_device=-(-blocks // setup.mesh.size),
    mean_length=mean_length,
  )


class OwnIndex:
  """The vectors and tokens of all blocks, of a run without an index builder.

  Attributes:
    part: What each device embeds at each step.

  Raises:
    ValueError: The vectors would be older than the run allows.
  """

  def __init__(
    self, setup: RunSetup, decisions: Decisions, checkpoints: Checkpointer
  ):
    corpus, devices = setup.corpus, setup.mesh.size
    self._setup = setup
    self._decisions = decisions
    self._checkpoints = checkpoints
    self._searched: SearchedBlocks | None = None
    self.part = slice_of_step(
      setup, corpus.num_blocks, mean_length=float(corpus.lengths.mean())
    )
    share = capacity_for(corpus.num_blocks, devices=devices) // devices
    self._round_steps = -(-min(share, corpus.num_blocks) // self.part.num_rows)
    _check_age(self._round_steps, setup.config.refresh)

  @property
  def searched(self) -> SearchedBlocks:
    """What a step searches, beside the vectors, which are in its state."""
    assert self._searched is not None, "open the index first"
    return self._searched

  def open(self, state: TrainState) -> TrainState:
    """Restores the vectors of a state's checkpoint, or embeds all blocks.

    Raises:
      WaitPreemptedError: The run was preempted meanwhile.
    """
    setup, corpus, step = self._setup, self._setup.corpus, int(state.step)
    block_length = setup.config.data.block_length
    blocks = load_blocks(corpus, block_length=block_length, mesh=setup.mesh)
    shapes = abstract_vectors(setup, corpus.num_blocks)
    dated = self._checkpoints.own_vectors(step, corpus.fingerprint, shapes)
    logging.info(
      "blocks that a step embeds again on each device: %d at most; steps in "
      "which every block is embedded again: %d at most",
      self.part.num_blocks,
      self._round_steps,
    )
    if dated is None:
      params = state.params["retriever"]
      dated = _embedded(setup, params, shapes, blocks, step, self._decisions)
    count = np.asarray(corpus.num_blocks, np.int32)
    replicated: Any = sharding.replicate(count, setup.mesh)
    self._searched = SearchedBlocks(
      query_params={},
      vectors=None,
      count=replicated,
      blocks=blocks,
      plan=plan_of(setup, corpus.num_blocks),
    )
    return state._replace(index=dated)


def _embedded(
  setup: RunSetup,
  params: Params,
  shapes: DatedVectors,
  blocks: BlockArrays,
  step: int,
  decisions: Decisions,
) -> DatedVectors:
  """Embeds all blocks, with the devices of the run."""
  corpus, mesh = setup.corpus, setup.mesh
  mean_length = float(corpus.lengths.mean())
  part = slice_of(
    setup,
    corpus.num_blocks,
    blocks_of_device=int(_TOKENS_PER_BATCH / mean_length),
    mean_length=mean_length,
  )
  refresh = jax.jit(
    sharding.under(
      setup.config.mesh.all_axis_rules,
      refresh_oldest,
      retriever=setup.models.retriever,
      part=part,
      mesh=mesh,
    ),
    donate_argnums=1,
    out_shardings=shapes.sharding,
  )
  dated = _without_vectors(shapes, corpus.num_blocks)
  number: Any = sharding.replicate(np.asarray(step, np.int32), mesh)
  total, done = corpus.num_blocks, 0
  with Progress("blocks embedded", total=total) as progress:
    while done < total:
      if decisions.loop.exchange("preempted", decisions.stop_requested(), any):
        raise WaitPreemptedError
      most_at_once = part.num_blocks * mesh.size
      batches = min(_BATCHES_PER_LOOK, -(-(total - done) // most_at_once))
      with jax.set_mesh(mesh):
        for _ in range(batches):
          dated = refresh(params, dated, blocks, number)
      before, done = done, int(_count(dated.steps, number))
      progress.advance(done - before)
  return dated


def _check_age(steps: int, config: RefreshConfig) -> None:
  """Checks the greatest age of a vector against what the run allows."""
  limit = config.max_staleness_steps
  if not limit or steps <= limit:
    return
  message = (
    f"every block is embedded again within {steps} steps alone, above "
    f"MAX_STALENESS_STEPS={limit}; raise BLOCKS_PER_STEP by a factor of "
    f"{steps / limit:.1f}, or the limit"
  )
  if config.on_stale == "fail":
    raise ValueError(message)
  logging.warning("%s", message)


def abstract_vectors(setup: StepSetup, num_blocks: int) -> DatedVectors:
  """Returns abstract vectors: a run's own, or those of an exact index."""
  config, dtype = setup.config, ExactConfig().dtype
  if config.keeps_own_index:
    dtype = config.rolling_refresh.rolling_refresh_dtype
  return DatedVectors.abstract(
    capacity_for(num_blocks, devices=setup.mesh.size),
    setup.models.retriever.vector_size,
    dtype=dtype,
    mesh=setup.mesh,
  )


def plan_of(setup: StepSetup, num_blocks: int) -> Plan:
  """Returns the settings of an exact search of a step's queries."""
  mesh = setup.mesh
  return ExactConfig().plan(
    setup.num_searched,
    num_queries=setup.config.data.batch_size,
    capacity=capacity_for(num_blocks, devices=mesh.size),
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )


def _without_vectors(shapes: DatedVectors, num_blocks: int) -> DatedVectors:
  """Returns zeros for the vectors, none of which was embedded."""

  @functools.partial(jax.jit, out_shardings=shapes.sharding)
  def zeros() -> DatedVectors:
    is_block = jnp.arange(len(shapes.steps)) < num_blocks
    return DatedVectors(
      jnp.zeros(shapes.vectors.shape, shapes.vectors.dtype),
      jnp.where(is_block, NEVER, NO_BLOCK).astype(jnp.int32),
    )

  return zeros()


@jax.jit
def _count(steps: Int[Array, " n"], step: Int[Array, ""]) -> Int[Array, ""]:
  """Returns how many blocks were embedded with a step's parameters."""
  return jnp.sum(steps == step)
