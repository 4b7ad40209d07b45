"""The rolling index of a run. Each step embeds a slice of it again.

The step does this in `search_in_step`. Here, the run restores or computes the
initial vectors.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import NamedSharding, PartitionSpec

from realm_jax.console import Progress
from realm_jax.errors import RealmError
from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.indexes.protocol import WaitPreemptedError
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import MESH_AXES
from realm_jax.training.block_arrays import BlockArrays, SearchedBlocks
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.compiled_steps import RunSetup, StepSetup
from realm_jax.training.decisions import Decisions
from realm_jax.training.search_in_step import (
  NEVER,
  NO_BLOCK,
  RollingIndexState,
  refresh_oldest,
)
from realm_jax.training.state import TrainState

# Tokens that each device embeds at once while a new run embeds all blocks.
_TOKENS_PER_BATCH = 16_384
_BATCHES_PER_LOOK = 16


class RollingIndex:
  """The vectors and tokens of all blocks, for a run without an index builder.

  Attributes:
    searched: Arrays that a step searches, except for the vectors, which are in
      the training state; None before the index is opened.

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
    # All blocks of a small corpus may be on the first device.
    share = min(total, setup.blocks_of_device(total * setup.mesh.size))
    steps = -(-share // setup.blocks_of_device(config.blocks_per_step))
    message = f"every block is embedded again within {steps} steps"
    limit = config.max_staleness_steps
    if limit and steps > limit:
      message += (
        f", above MAX_STALENESS_STEPS={limit}; raise BLOCKS_PER_STEP by a "
        f"factor of {steps / limit:.1f}, or the limit"
      )
      if config.on_stale == "fail":
        raise RealmError(message)
      logging.warning("%s", message)
    elif 0 < (num_steps := setup.config.num_steps) < steps:
      logging.warning(
        "%s, and NUM_STEPS=%d are fewer: raise BLOCKS_PER_STEP by a factor of "
        "%.1f, or some blocks keep their first vectors",
        *(message, num_steps, steps / num_steps),
      )
    else:
      logging.info("%s", message)

  def open(self, state: TrainState) -> TrainState:
    """Restores the vectors of a state's checkpoint, or embeds all blocks.

    Raises:
      WaitPreemptedError: The run was preempted meanwhile.
    """
    setup, corpus = self._setup, self._setup.corpus
    blocks = setup.load_blocks(corpus)
    shapes = abstract_vectors(setup)
    vectors = self._checkpoints.rolling_vectors(
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
    if vectors is not None:
      return state._replace(index=RollingIndexState(**vectors))
    return state._replace(index=self._embedded(state, shapes, blocks))

  def _embedded(
    self, state: TrainState, shapes: RollingIndexState, blocks: BlockArrays
  ) -> RollingIndexState:
    """Embeds all blocks, on the devices of the run."""
    setup, mesh = self._setup, self._setup.mesh
    capacity = len(shapes.steps)
    of_device = _TOKENS_PER_BATCH // setup.config.data.block_length
    num_blocks = setup.blocks_of_device(of_device * mesh.size)
    at_once = mesh.size * num_blocks
    shardings = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    refresh = jax.jit(
      sharding.under(
        setup.config.mesh.all_axis_rules,
        refresh_oldest,
        retriever=setup.components.retriever,
        num_blocks=num_blocks,
        mesh=mesh,
      ),
      donate_argnums=1,
      out_shardings=shardings,
    )

    @functools.partial(jax.jit, out_shardings=shardings)
    def without_vectors() -> RollingIndexState:
      is_block = jnp.arange(capacity) < setup.num_blocks
      return RollingIndexState(
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


def abstract_vectors(setup: StepSetup) -> RollingIndexState:
  """Returns the abstract vectors of a rolling index, or of an exact one."""
  config, dtype = setup.config, ExactConfig().dtype
  if config.keeps_rolling_index:
    dtype = config.refresh.rolling_refresh_dtype
  size = setup.components.retriever.vector_size
  capacity = capacity_for(setup.num_blocks, devices=setup.mesh.size)
  by_rows = NamedSharding(setup.mesh, PartitionSpec(MESH_AXES))
  abstract: Any = functools.partial(jax.ShapeDtypeStruct, sharding=by_rows)
  return RollingIndexState(
    abstract((capacity, size), jnp.dtype(dtype)),
    abstract((capacity,), jnp.int32),
  )


def plan_of(setup: StepSetup) -> exact_search.SearchPlan:
  """Returns the settings of the exact search for a step's queries."""
  mesh = setup.mesh
  return exact_search.make_plan(
    setup.num_searched,
    num_queries=setup.config.data.batch_size,
    num_rows=capacity_for(setup.num_blocks, devices=mesh.size),
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )
