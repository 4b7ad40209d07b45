"""Opens the parts of a run, trains, and closes the parts whatever happens."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Int64

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.configuration.kept import Kept
from realm_jax.console import stop_on_signal
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import stream_batches
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.path_retriever import PATH_RETRIEVER
from realm_jax.models.retriever import START_RETRIEVER
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.sole_process import sole_process
from realm_jax.training.batch_pipeline import BatchPipeline
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.compiled_steps import CompiledSteps, RunSetup, set_up
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import open_schedule
from realm_jax.training.loop import OpenRun, TrainResult, run_steps
from realm_jax.training.metrics import MetricsLog
from realm_jax.training.rolling_index import RollingIndex
from realm_jax.training.stages.stage import StepBatch
from realm_jax.training.state import Metrics, TrainState, create_state


def train(config: TrainConfig) -> TrainResult:
  """Trains one stage, from the last checkpoint of MODEL_DIR, if any.

  Args:
    config: Configuration of the run, which is saved in MODEL_DIR.

  Raises:
    ConfigurationError: The configuration has an object that config.json cannot
      store.
    SoleProcessError: MODEL_DIR already has a trainer or, on an object store,
      another trainer has taken it over.
    CheckpointError: A checkpoint is missing, does not fit, or could not be
      written.
    CorpusError: There is no corpus, or its blocks are longer than
      `block_length`.
    StoreAccessError: A bucket cannot be read, or written to.
    ValueError: The configuration does not fit the corpus or the devices.
    NonFiniteLossError: The loss is not finite; the last good checkpoint stays.

  Example:
    >>> from realm_jax.configuration import parsed
    >>> files = ["gin/runs/inverse_cloze.gin", "model.gin"]
    >>> bindings = ["MODEL_DIR = 'runs/ict'", "CORPUS_DIR = 'corpus'"]
    >>> bindings += ["NUM_STEPS = 2", "BATCH_SIZE = 8"]
    >>> train(parsed(TrainConfig, files, bindings).build(TrainConfig))
    TrainResult(step=2, preempted=False)
  """
  with open_run(config) as (state, run):
    if run is None:
      step = int(state.step)
      logging.info("%s is already trained: step %d", config.model_dir, step)
      return TrainResult(step, preempted=False)
    return run_steps(state, run, num_steps=config.num_steps)


@contextlib.contextmanager
def open_run(
  config: TrainConfig,
) -> Iterator[tuple[TrainState, OpenRun | None]]:
  """Opens a new run, or one from its last checkpoint.

  Yields the state before the next step, and the parts of the run, or None if
  all steps are done. Raises the same errors as `train`.
  """
  data, sources, began = config.data, config.checkpoints, time.time()
  kept, numbers = Kept.of(config), range(len(config.stages))
  with contextlib.ExitStack() as stack:
    store = CheckpointStore(config.model_dir, keep=sources.keep_checkpoints)
    decisions = Decisions(
      stack.enter_context(stop_on_signal()),
      num_steps=config.num_steps,
      save_every_steps=sources.save_every_steps,
      check=store.check,
    )
    loop = decisions.loop
    # Buckets are checked before anything slow.
    require_readable(
      data.corpus_dir,
      data.pretraining_corpus_dir,
      *(p for n in numbers for p in config.data_of(n).question_paths),
      sources.initial_checkpoint,
      sources.initial_reader,
    )
    require_writable(config.model_dir)
    config.stage.check_services()
    setup = set_up(config)
    loop.require_same(
      {
        "TrainConfig": config,
        "the corpus": setup.corpus.fingerprint,
        "the corpus of the examples": setup.examples.fingerprint,
      }
    )
    # The last of these checks, on process 0, that this trainer still owns
    # MODEL_DIR.
    checks: list[Callable[[], None]] = [lambda: None]

    def take_model_dir() -> None:
      checks.append(stack.enter_context(sole_process(config.model_dir)))

    loop.on_process_0("sole trainer", take_model_dir)
    stack.callback(store.close)
    saves_once = config.refresh.wait_for_snapshots or loop.count > 1
    checkpoints = Checkpointer(
      *(store, setup.identity, sources),
      max_failures=0 if saves_once else 3,
      required={RERANKER, PATH_RETRIEVER, START_RETRIEVER}
      & {n for one in config.stages for n in one.frozen},
    )
    state, loop_state = checkpoints.initialize_or_restore(
      create_state(
        setup.init,
        setup.optimizer,
        setup.components,
        # A restored state needs no initial values, and no memory for them.
        seed=None if store.steps() else data.seed,
        mesh=setup.mesh,
        axis_rules=config.mesh.all_axis_rules,
      )
    )
    step, count = int(state.step), len(config.stages)
    if count > 1 and not store.steps():
      # In a new run, the streams of all stages start at the same positions.
      positions = np.stack([loop_state.positions] * count, axis=1)
      loop_state = loop_state._replace(positions=positions)
    streams = stack.enter_context(_streams(setup, loop_state.positions))
    rolling_index = None
    if config.keeps_rolling_index and step < config.num_steps:
      rolling_index = RollingIndex(setup, decisions, checkpoints)
    loop.on_process_0("configuration", lambda: kept.write(config.model_dir))
    # The first snapshot is built from checkpoint 0, which is saved once
    # everything that the run needs has been found.
    if not store.steps():
      checkpoints.save(state, loop_state)
    if step >= config.num_steps:
      yield state, None
      return
    metrics = MetricsLog(
      config.model_dir,
      start_step=step,
      num_steps=config.num_steps,
      examples_per_step=data.batch_size,
      freeze_retriever_steps=config.optimizer.freeze_retriever_steps,
      writers=config.metric_writers,
      began=began,
      writes=loop.is_leader,
    )
    stack.callback(metrics.close)
    schedule = None
    if config.stage.retrieval is not None and rolling_index is None:
      schedule = open_schedule(setup, decisions)
      stack.callback(schedule.close)
    batches = BatchPipeline(
      setup,
      streams,
      schedule=schedule,
      decisions=decisions,
      start_step=step,
      resumed=loop_state,
      rolling_index=rolling_index,
      depth=config.steps_ahead,
    )
    stack.callback(batches.close)
    # Bin counts follow from a corpus that a resumed run finds unchanged.
    compiled = []
    for number in numbers:
      of_stage = dataclasses.replace(setup, number=number)
      steps = CompiledSteps(of_stage, of_stage.layout(setup.examples))
      # A step that searches is compiled once the vectors are loaded, as is
      # every step of a run with a rolling index, which then joins the state.
      if not of_stage.searches_in_step and rolling_index is None:
        steps.compile(state, of_stage.abstract_batch())
      compiled.append(steps)

    def run_step(
      state: TrainState, batch: StepBatch, searched: Any, step: int
    ) -> tuple[TrainState, Metrics]:
      steps = compiled[config.stage_of(step)]
      return steps(state, batch, searched, step)

    run = run_step, batches, checkpoints, decisions, metrics
    yield state, OpenRun(*run, checks[-1], rolling_index)


@contextlib.contextmanager
def _streams(
  setup: RunSetup, positions: Int64[np.ndarray, "b *s"]
) -> Iterator[list[Iterator[Batch]]]:
  """Opens a stream of examples for each stage, at the stage's positions."""
  with contextlib.ExitStack() as stack:
    streams = list[Iterator[Batch]]()
    for number, of_stage in enumerate(positions.reshape(len(positions), -1).T):
      data = dataclasses.replace(
        setup.config.data_of(number), corpus_version=setup.examples.version
      )
      stream = stack.enter_context(
        contextlib.closing(stream_batches(data, positions=of_stage))
      )
      streams.append(stream)
    yield streams
