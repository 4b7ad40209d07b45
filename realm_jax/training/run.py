"""Opens what a run needs, and closes all of it, whatever happens."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.batches import BatchStream
from realm_jax.models.retriever import embed_queries
from realm_jax.partitioning.mesh import DATA_AXIS, make_mesh
from realm_jax.retrieval.pipeline import RetrievalPipeline
from realm_jax.training.batches import StepBatch
from realm_jax.training.candidates import CandidateStream, HostCandidateStream
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.collapse import CollapseMonitor
from realm_jax.training.compilation import CompiledSteps
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions, LocalDecisions
from realm_jax.training.loop_state import LoopState, RunIdentity
from realm_jax.training.metrics import MetricsLog
from realm_jax.training.optimizer import make_optimizer
from realm_jax.training.packing.packer import Packer, largest_bucket
from realm_jax.training.packing.shape_buckets import (
  abstract_batch,
  choose_shape_buckets,
)
from realm_jax.training.refresh.corpus_versions import corpus_of_run
from realm_jax.training.refresh.following import follow_builder
from realm_jax.training.run_lock import run_lock
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.state import TrainState, create_state
from realm_jax.training.step import Loss


@dataclasses.dataclass(frozen=True)
class Run:
  """The opened parts of a run, as `run_steps` takes them.

  Attributes:
    state: State before the next step.
    step_function: Compiled steps; none are compiled for a run that is over.
    candidates: Stream of batches with their candidates.
    checkpoints: Writer of checkpoints.
    decisions: Decisions that all processes take alike.
    metrics: Log of the metrics.
  """

  state: TrainState
  step_function: CompiledSteps
  candidates: CandidateStream
  checkpoints: Checkpointer
  decisions: Decisions
  metrics: MetricsLog


@dataclasses.dataclass(frozen=True)
class _Setup:
  """What follows from the configuration and the corpus alone.

  Attributes:
    config: Configuration of the run.
    corpus: Corpus version that the run reads.
    identity: What the run must share with its checkpoints.
    mesh: Mesh over all devices.
    inputs: Maker of the encoder inputs, with the models.
    loss: Loss of the stage.
    optimizer: Optimizer of the run.
  """

  config: TrainConfig
  corpus: Corpus
  identity: RunIdentity
  mesh: Mesh
  inputs: ModelInputs
  loss: Loss[Any]
  optimizer: optax.GradientTransformation


@contextlib.contextmanager
def open_run(config: TrainConfig) -> Iterator[Run]:
  """Opens a run from its last checkpoint, or a new one.

  Raises:
    RunLockError: MODEL_DIR has a trainer already.
    CheckpointError: A checkpoint is missing or does not fit.
    CorpusError: There is no corpus, or its blocks are longer than
      `block_length`.
    ValueError: The configuration does not fit the corpus or the devices.
  """
  setup = _set_up(config)
  with contextlib.ExitStack() as stack:
    stack.enter_context(run_lock(config.model_dir))
    decisions = LocalDecisions(
      stack.enter_context(stop_on_sigterm()),
      num_steps=config.num_steps,
      save_every_steps=config.checkpoints.save_every_steps,
    )
    store = CheckpointStore(
      config.model_dir, keep=config.checkpoints.keep, read_only=False
    )
    stack.callback(store.close)
    checkpoints = Checkpointer(store, setup.identity)
    state, shardings, loop_state = _open_state(setup, checkpoints)
    examples = BatchStream(
      dataclasses.replace(config.data, corpus_version=setup.corpus.version),
      start_position=loop_state.position,
    )
    stack.callback(examples.close)
    # The first generation is built from checkpoint 0. It is not saved before
    # everything that it needs has been found to be there.
    checkpoints.save_if_new(state, loop_state)
    metrics = MetricsLog(
      config.model_dir,
      start_step=int(state.step),
      num_steps=config.num_steps,
      examples_per_step=config.data.batch_size,
      monitor=CollapseMonitor(config.optimizer.freeze_retriever_steps),
    )
    stack.callback(metrics.close)
    packer, batches = _shape_buckets(setup)
    candidates = stack.enter_context(
      _open_candidates(setup, examples, packer, decisions, loop_state)
    )
    yield Run(
      state=state,
      step_function=_compile(setup, state, shardings, batches),
      candidates=candidates,
      checkpoints=checkpoints,
      decisions=decisions,
      metrics=metrics,
    )


def _set_up(config: TrainConfig) -> _Setup:
  """Opens the corpus and checks the configuration against it.

  Raises:
    ValueError: The configuration does not fit the corpus or the devices.
  """
  if jax.process_count() > 1:
    raise ValueError(
      f"jax has {jax.process_count()} processes, and training supports one; "
      "start it on a single host"
    )
  corpus = corpus_of_run(config.model_dir, config.data.corpus_dir)
  corpus.require_whole_blocks(config.data.block_length)
  mesh = make_mesh(model_parallelism=config.model_parallelism)
  groups = mesh.shape[DATA_AXIS]
  if config.data.batch_size % groups:
    raise ValueError(
      f"batch_size={config.data.batch_size} is not a multiple of the {groups} "
      "devices of the data axis; change BATCH_SIZE"
    )
  models = Models(config.retriever, config.reader).for_corpus(corpus)
  return _Setup(
    config=config,
    corpus=corpus,
    identity=_identity_of(config, corpus),
    mesh=mesh,
    inputs=ModelInputs(models, groups=groups),
    loss=config.stage.loss(models),
    optimizer=make_optimizer(config.optimizer, num_steps=config.num_steps),
  )


def _identity_of(config: TrainConfig, corpus: Corpus) -> RunIdentity:
  waits = config.waits
  return RunIdentity(
    seed=config.data.seed,
    batch_size=config.data.batch_size,
    num_searched=config.stage.num_searched(corpus.num_blocks),
    save_every_steps=config.checkpoints.save_every_steps if waits else 0,
    lag_steps=config.refresh.lag_steps if waits else 0,
    vocabulary=corpus.vocab_sha256,
    corpus_version=corpus.version,
    corpus_fingerprint=corpus.fingerprint,
  )


def _open_state(
  setup: _Setup, checkpoints: Checkpointer
) -> tuple[TrainState, TrainState, LoopState]:
  """Returns the state to continue from, its shardings and the loop's state."""
  config = setup.config
  lengths = {
    "query": config.data.query_length,
    "block": config.data.block_length,
  }
  state, shardings = create_state(
    functools.partial(config.stage.init, setup.inputs.models, lengths),
    setup.optimizer,
    seed=config.data.seed,
    mesh=setup.mesh,
  )
  state, loop_state = checkpoints.initialize_or_restore(
    state,
    config.checkpoints.sources,
    required=config.checkpoints.required,
  )
  return state, shardings, loop_state


def _shape_buckets(setup: _Setup) -> tuple[Packer, list[StepBatch]]:
  """Returns the packer, and an abstract batch for each shape bucket."""
  data, stage = setup.config.data, setup.config.stage
  query_shape = (data.batch_size, data.query_length)
  candidates_shape = (data.batch_size, stage.num_candidates, data.block_length)
  make_batch = functools.partial(
    stage.example,
    inputs=setup.inputs,
    num_searched=setup.identity.num_searched,
    max_masks=data.max_masks,
  )
  empty = make_batch(
    np.zeros(query_shape, np.int32), np.zeros(candidates_shape, np.int32)
  )
  groups = setup.inputs.groups
  if setup.config.pack:
    buckets = choose_shape_buckets(
      make_batch,
      query_shape=query_shape,
      candidates_shape=candidates_shape,
      groups=groups,
      corpus=setup.corpus,
    )
  else:
    buckets = [largest_bucket(empty, groups=groups)]
  packer = Packer(buckets, groups=groups, pack=setup.config.pack)
  plans = packer.plan(empty)
  return packer, [
    abstract_batch(packer.lay_out(empty, plans, bucket=bucket), setup.mesh)
    for bucket in range(len(buckets))
  ]


def _compile(
  setup: _Setup,
  state: TrainState,
  shardings: TrainState,
  batches: list[StepBatch],
) -> CompiledSteps:
  """Compiles the steps; none for a run that has no step left."""
  config = setup.config
  if int(state.step) >= config.num_steps:
    logging.info("%s is already trained: step %d", config.model_dir, state.step)
    batches = []
  return CompiledSteps(
    state,
    batches,
    shardings=shardings,
    loss=setup.loss,
    optimizer=setup.optimizer,
    seed=config.data.seed,
    mesh=setup.mesh,
    num_steps=config.num_steps,
    freeze_retriever_steps=config.optimizer.freeze_retriever_steps,
  )


@contextlib.contextmanager
def _open_candidates(
  setup: _Setup,
  examples: BatchStream,
  packer: Packer,
  decisions: Decisions,
  resumed: LoopState,
) -> Iterator[HostCandidateStream]:
  """Opens the candidate stream, with the generations that it searches."""
  config = setup.config
  num_searched = setup.identity.num_searched
  with contextlib.ExitStack() as stack:
    schedule = None
    if config.stage.needs_index:
      schedule = stack.enter_context(
        follow_builder(
          config,
          corpus=setup.corpus,
          num_searched=num_searched,
          mesh=setup.mesh,
          decisions=decisions,
        )
      )
    retriever = setup.inputs.models.retriever
    pipeline: RetrievalPipeline[StepBatch] = RetrievalPipeline(
      functools.partial(embed_queries, retriever), mesh=setup.mesh
    )
    stack.callback(pipeline.close)
    yield HostCandidateStream(
      examples,
      stage=config.stage,
      inputs=setup.inputs,
      packer=packer,
      pipeline=pipeline,
      schedule=schedule,
      decisions=decisions,
      corpus=setup.corpus,
      num_searched=num_searched,
      block_length=config.data.block_length,
      resumed=resumed,
    )
