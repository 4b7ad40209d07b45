"""The step that retrieves inside, and may keep its own index."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.corpus_embedder import abstract_retriever
from realm_jax.indexes.exact import ExactConfig
from realm_jax.models.retriever import query_tower_parameters
from realm_jax.partitioning import rules
from realm_jax.precompilation.programs.program import STEP, Program
from realm_jax.retrieval.device_candidates import SearchedVectors
from realm_jax.retrieval.rolling_refresh import Slice
from realm_jax.retrieval.token_store import abstract_blocks
from realm_jax.training import useful_flops
from realm_jax.training.batches import Searched, UnretrievedBatch
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
  retriever, bucket = setup.inputs.models.retriever, usual_bucket(packer)
  arrays = empty_arrays(setup, len(setup.own_rows))
  hashes = np.zeros((len(arrays.query), 2), np.uint32)
  masks = empty_mask_targets(arrays)
  examples = abstract_batch(
    UnretrievedBatch(arrays.query, hashes, masks),
    mesh,
    groups=setup.inputs.groups,
  )
  blocks = abstract_blocks(
    num_blocks,
    config.data.block_length,
    vocab_size=retriever.bert.vocab_size or 0,
    mesh=mesh,
  )
  dated = abstract_vectors(setup, num_blocks)
  arguments: tuple[Any, ...]
  steps_of_round = None
  if config.keeps_own_index:
    lengths = None if corpus is None else corpus.lengths
    part = slice_for(
      setup,
      packer.buckets[0],
      lengths=lengths,
      blocks_of_device=len(dated.steps) // mesh.size,
    )
    work = work.plus(_work_of_slice(setup, part, lengths))
    carried = RollingState(state, dated)
    plan = plan_of(setup, num_blocks, num_queries=config.data.batch_size)
    step = jitted_rolling_step(
      setup,
      shardings_of(carried),
      bucket=bucket,
      plan=plan,
      part=part,
      num_blocks=num_blocks,
      frozen=frozen,
    )
    arguments = carried, examples, blocks
    steps_of_round = round_steps(part, num_blocks, devices=mesh.size)
  else:
    plan = index.plan(
      setup.num_searched,
      num_queries=config.data.batch_size,
      capacity=len(dated.steps),
      devices=mesh.size,
      platform=mesh.devices.flat[0].platform,
    )
    step = jitted_retrieving_step(
      setup, shardings_of(state), bucket=bucket, plan=plan, frozen=frozen
    )
    vectors: Any = jax.ShapeDtypeStruct(
      dated.vectors.shape, jnp.dtype(index.dtype), sharding=dated.sharding
    )
    count: Any = jax.ShapeDtypeStruct(
      (), jnp.int32, sharding=rules.replicated(mesh)
    )
    query_params = {}
    if not config.stage.current_queries:
      query_params = query_tower_parameters(
        retriever, abstract_retriever(retriever, mesh)
      )
    searched = Searched(query_params, SearchedVectors(vectors, count), blocks)
    arguments = state, examples, searched
  share = -(-num_blocks // mesh.size)
  return Program(
    kind=STEP,
    name=f"{config.data.batch_size:,} queries, {num_blocks:,} blocks",
    function=step,
    arguments=arguments,
    mesh=mesh,
    work=work,
    unknown_trips=-(-share // plan.rows_per_step),
    round_steps=steps_of_round,
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
