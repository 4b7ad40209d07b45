"""The index that a run keeps itself: filled, restored, saved and searched."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Int

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.indexes.exact_search import Plan
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.retrieval.rolling_refresh import (
  NEVER,
  NO_BLOCK,
  DatedVectors,
  refresh_oldest,
)
from realm_jax.retrieval.token_store import TokenStore
from realm_jax.training.batches import Searched
from realm_jax.training.checkpointing import Checkpointer, OwnVectors
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.device_retrieval.rolling_refresh.slices import (
  round_steps,
  row_length_of,
  slice_for,
  slice_of_rows,
)
from realm_jax.training.generations import WaitPreemptedError
from realm_jax.training.packing.packer import Packer
from realm_jax.training.setup import RunSetup, StepSetup

# Tokens that each device embeds at once while a new run embeds all blocks.
_TOKENS_PER_BATCH = 16_384
_BATCHES_PER_LOOK = 16


class OwnIndex:
  """The vectors and tokens of all blocks, of a run without an index builder.

  Attributes:
    part: What each device embeds at each step.
    round_steps: Number of steps, at most, in which that is every block.
    dated: The vectors, which each step replaces.
    swaps: Number of generations that were swapped in: none ever is.

  Raises:
    ValueError: The share is too small for a block, or the vectors would be
      older than the run allows.
  """

  swaps = 0

  def __init__(
    self,
    setup: RunSetup,
    packer: Packer,
    decisions: Decisions,
    checkpoints: Checkpointer,
  ):
    corpus, mesh = setup.corpus, setup.mesh
    self._setup = setup
    self._decisions = decisions
    self._checkpoints = checkpoints
    self.dated = abstract_vectors(setup, corpus.num_blocks)
    self.part = slice_for(
      setup,
      packer.buckets[0],
      lengths=corpus.lengths,
      blocks_of_device=len(self.dated.steps) // mesh.size,
    )
    self.round_steps = round_steps(
      self.part, corpus.num_blocks, devices=mesh.size
    )
    _check_age(self.round_steps, setup.config.refresh)
    self._blocks = TokenStore.of(
      corpus,
      setup.inputs.models.retriever,
      block_length=setup.config.data.block_length,
      mesh=mesh,
    ).arrays
    self._is_open = False

  @property
  def corpus(self) -> Corpus:
    """Corpus version that is searched."""
    return self._setup.corpus

  def open(self, step: int, params: Params) -> None:
    """Restores the vectors of a step's checkpoint, or embeds all blocks.

    Raises:
      WaitPreemptedError: The run was preempted meanwhile.
    """
    if self._is_open:
      return
    restored = self._checkpoints.own_vectors(
      step, self.corpus.fingerprint, self.dated
    )
    logging.info(
      "blocks that a step embeds again on each device: %d at most; steps in "
      "which every block is embedded again: %d at most",
      self.part.num_blocks,
      self.round_steps,
    )
    self.dated = restored or self._embedded(step, params)
    self._is_open = True

  def _embedded(self, step: int, params: Params) -> DatedVectors:
    """Embeds all blocks, with the devices of the run."""
    setup, mesh = self._setup, self._setup.mesh
    shapes = self.dated
    num_rows = max(1, _TOKENS_PER_BATCH // row_length_of(setup))
    part = slice_of_rows(
      setup,
      num_rows=num_rows,
      lengths=self.corpus.lengths,
      blocks_of_device=len(shapes.steps) // mesh.size,
    )
    refresh = jax.jit(
      sharding.shared_partial(
        sharding.under(setup.config.mesh.all_axis_rules, refresh_oldest),
        retriever=setup.inputs.models.retriever,
        part=part,
        mesh=mesh,
      ),
      donate_argnums=1,
      out_shardings=shapes.sharding,
    )
    dated = _without_vectors(shapes, self.corpus.num_blocks)
    number: Any = sharding.replicate(np.asarray(step, np.int32), mesh)
    total, done = self.corpus.num_blocks, 0
    with Progress("blocks embedded", total=total) as progress:
      while done < total:
        if self._decisions.loop.exchange(
          "preempted", self._decisions.stop_requested(), any
        ):
          raise WaitPreemptedError
        most_at_once = part.num_blocks * mesh.size
        batches = min(_BATCHES_PER_LOOK, -(-(total - done) // most_at_once))
        with jax.set_mesh(mesh):
          for _ in range(batches):
            dated = refresh(params["retriever"], dated, self._blocks, number)
        before, done = done, int(_count(dated.steps, number))
        progress.advance(done - before)
    return dated

  def at(self, step: int, params: Params) -> "OwnIndex":
    """Returns what a step searches."""
    self.open(step, params)
    return self

  def loaded(self) -> None:
    """There is no generation to swap in."""

  @property
  def generation(self) -> None:
    """No generation is in use."""

  def metrics(self, step: int) -> dict[str, float]:
    """Returns what the host knows of a step's index."""
    del step
    return {"corpus_version": float(self.corpus.version)}

  def searched(self) -> Searched:
    """Returns the blocks, whose vectors the step is given as its state."""
    return Searched({}, None, self._blocks)

  def plan(self, num_queries: int) -> Plan:
    """Returns the settings of the search."""
    return plan_of(self._setup, self.corpus.num_blocks, num_queries=num_queries)

  @property
  def own(self) -> OwnVectors | None:
    """What a checkpoint keeps; None before there are vectors."""
    if not self._is_open:
      return None
    return OwnVectors(self.dated, self.corpus.fingerprint)


def _check_age(steps: int, config: RefreshConfig) -> None:
  """Checks the greatest age of a vector against what the run allows."""
  limit = config.max_staleness_steps
  if not limit or steps <= limit:
    return
  message = (
    f"every block is embedded again within {steps} steps alone, above "
    f"MAX_STALENESS_STEPS={limit}; raise ROLLING_REFRESH_SHARE by a factor of "
    f"{steps / limit:.1f}, or the limit"
  )
  if config.on_stale == "fail":
    raise ValueError(message)
  logging.warning("%s", message)


def abstract_vectors(setup: StepSetup, num_blocks: int) -> DatedVectors:
  """Returns the abstract arrays of a run's own vectors."""
  return DatedVectors.abstract(
    capacity_for(num_blocks, devices=setup.mesh.size),
    setup.inputs.models.retriever.vector_size,
    dtype=setup.config.rolling_refresh.rolling_refresh_dtype,
    mesh=setup.mesh,
  )


def plan_of(setup: StepSetup, num_blocks: int, *, num_queries: int) -> Plan:
  """Returns the settings of the search of a run's own vectors."""
  mesh = setup.mesh
  capacity = capacity_for(num_blocks, devices=mesh.size)
  return ExactConfig(
    dtype=setup.config.rolling_refresh.rolling_refresh_dtype
  ).plan(
    setup.num_searched,
    num_queries=num_queries,
    capacity=capacity,
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )


def _without_vectors(shapes: DatedVectors, num_blocks: int) -> DatedVectors:
  """Returns zeros for the vectors, none of which was embedded."""
  count, dim = shapes.vectors.shape

  def steps_of(index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    is_block = np.arange(count)[index] < num_blocks
    return np.where(is_block, NEVER, NO_BLOCK).astype(np.int32)

  def zeros(index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    rows = len(range(*index[0].indices(count)))
    return np.zeros((rows, dim), shapes.vectors.dtype)

  return DatedVectors(
    jax.make_array_from_callback((count, dim), shapes.sharding, zeros),
    jax.make_array_from_callback((count,), shapes.sharding, steps_of),
  )


@jax.jit
def _count(steps: Int[Array, " n"], step: Int[Array, ""]) -> Int[Array, ""]:
  """Returns how many blocks were embedded with a step's parameters."""
  return jnp.sum(steps == step)
