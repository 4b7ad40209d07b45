"""The step that retrieves inside, and may keep its own index."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.corpus_embedder import abstract_retriever
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.indexes.exact_search import Plan
from realm_jax.models.retriever import query_tower_parameters
from realm_jax.partitioning import rules
from realm_jax.precompilation.programs.program import STEP, Program
from realm_jax.retrieval.device_candidates import BlockArrays, SearchedVectors
from realm_jax.retrieval.rolling_refresh import DatedVectors, Slice
from realm_jax.retrieval.token_store import abstract_blocks
from realm_jax.training import useful_flops
from realm_jax.training.batches import Searched, StepBatch, UnretrievedBatch
from realm_jax.training.device_retrieval.compilation import (
  jitted_retrieving_step,
  shardings_of,
  usual_bucket,
)
from realm_jax.training.device_retrieval.rolling_refresh.compilation import (
  jitted_rolling_step,
)
from realm_jax.training.device_retrieval.rolling_refresh.own_index import (
  abstract_vectors,
  plan_of,
)
from realm_jax.training.device_retrieval.rolling_refresh.slices import (
  round_steps,
  row_length_of,
  slice_for,
)
from realm_jax.training.packing.packer import Packer
from realm_jax.training.packing.shape_buckets import abstract_batch
from realm_jax.training.packing.step_shapes import empty_arrays
from realm_jax.training.setup import StepSetup
from realm_jax.training.stages.protocol import empty_mask_targets
from realm_jax.training.state import RollingState, TrainState
from realm_jax.training.useful_flops import Work


def retrieving_step(
  setup: StepSetup,
  state: TrainState,
  packer: Packer,
  *,
  num_blocks: int,
  corpus: Corpus | None,
  index: ExactConfig,
  work: Work,
  frozen: bool,
) -> Program:
  """Returns the step of a run that retrieves on the devices.

  Of the two shapes inside, padded and packed, the estimates are of the first.

  Args:
    setup: Parts of the step.
    state: Abstract state.
    packer: Packer with the shape buckets of the run.
    num_blocks: Number of blocks that are searched.
    corpus: Corpus whose lengths they have.
    index: Settings of the index, if the run does not keep its own.
    work: Useful work of the step's other parts.
    frozen: Whether the retriever is frozen.
  """
  config, mesh = setup.config, setup.mesh
  blocks = abstract_blocks(
    num_blocks,
    config.data.block_length,
    vocab_size=setup.inputs.models.retriever.bert.vocab_size or 0,
    mesh=mesh,
  )
  if config.keeps_own_index:
    lengths = None if corpus is None else corpus.lengths
    made = _rolling(
      setup, state, packer, blocks, num_blocks, lengths, frozen=frozen
    )
  else:
    made = _searching(
      setup, state, packer, blocks, num_blocks, index, frozen=frozen
    )
  share = -(-num_blocks // mesh.size)
  return Program(
    kind=STEP,
    name=f"{config.data.batch_size:,} queries, {num_blocks:,} blocks",
    function=made.function,
    arguments=made.arguments,
    mesh=mesh,
    work=work.plus(made.further_work),
    unknown_trips=-(-share // made.plan.rows_per_step),
    round_steps=made.round_steps,
  )


class _Step(NamedTuple):
  """A step that retrieves, with its abstract arguments.

  Attributes:
    plan: Settings of its search.
    further_work: Useful work on the blocks that it embeds again.
    round_steps: In how many steps it embeds every block; None if it embeds
      none.
  """

  function: jax.stages.Wrapped
  arguments: tuple[Any, ...]
  plan: Plan
  further_work: Work = Work(0.0, 0.0)
  round_steps: int | None = None


def _rolling(
  setup: StepSetup,
  state: TrainState,
  packer: Packer,
  blocks: BlockArrays,
  num_blocks: int,
  lengths: Int[np.ndarray, " n"] | None,
  *,
  frozen: bool,
) -> _Step:
  """Returns the step that keeps its own index."""
  devices = setup.mesh.size
  dated = abstract_vectors(setup, num_blocks)
  part = slice_for(
    setup,
    packer.buckets[0],
    lengths=lengths,
    blocks_of_device=len(dated.steps) // devices,
  )
  carried = RollingState(state, dated)
  plan = plan_of(setup, num_blocks, num_queries=setup.config.data.batch_size)
  function = jitted_rolling_step(
    setup,
    shardings_of(carried),
    bucket=usual_bucket(packer),
    plan=plan,
    part=part,
    num_blocks=num_blocks,
    frozen=frozen,
  )
  return _Step(
    function,
    (carried, _examples(setup), blocks),
    plan,
    _work_of_slice(setup, part, lengths),
    round_steps(part, num_blocks, devices=devices),
  )


def _searching(
  setup: StepSetup,
  state: TrainState,
  packer: Packer,
  blocks: BlockArrays,
  num_blocks: int,
  index: ExactConfig,
  *,
  frozen: bool,
) -> _Step:
  """Returns the step that searches the generations of a builder."""
  config, mesh = setup.config, setup.mesh
  retriever = setup.inputs.models.retriever
  capacity = capacity_for(num_blocks, devices=mesh.size)
  plan = index.plan(
    setup.num_searched,
    num_queries=config.data.batch_size,
    capacity=capacity,
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )
  dated = DatedVectors.abstract(
    capacity, retriever.vector_size, dtype=index.dtype, mesh=mesh
  )
  count: Any = jax.ShapeDtypeStruct(
    (), jnp.int32, sharding=rules.replicated(mesh)
  )
  query_params = {}
  if not config.stage.current_queries:
    query_params = query_tower_parameters(
      retriever, abstract_retriever(retriever, mesh)
    )
  vectors = SearchedVectors(dated.vectors, count)
  function = jitted_retrieving_step(
    setup,
    shardings_of(state),
    bucket=usual_bucket(packer),
    plan=plan,
    frozen=frozen,
  )
  searched = Searched(query_params, vectors, blocks)
  return _Step(function, (state, _examples(setup), searched), plan)


def _examples(setup: StepSetup) -> StepBatch:
  """Returns abstract examples, whose candidates are not yet retrieved."""
  arrays = empty_arrays(setup, len(setup.own_rows))
  hashes = np.zeros((len(arrays.query), 2), np.uint32)
  masks = empty_mask_targets(arrays)
  return abstract_batch(
    UnretrievedBatch(arrays.query, hashes, masks),
    setup.mesh,
    groups=setup.inputs.groups,
  )


def _work_of_slice(
  setup: StepSetup, part: Slice, lengths: Int[np.ndarray, " n"] | None
) -> Work:
  """Returns the work on the blocks that a step embeds again, in full rows."""
  row_length = row_length_of(setup)
  if lengths is None:
    lengths = np.array([row_length])
  tokens = float(part.num_rows * row_length * setup.mesh.size)
  flops = useful_flops.tower_flops(setup.inputs.models.retriever, lengths)
  return Work(flops / float(lengths.sum()) * tokens, tokens)
