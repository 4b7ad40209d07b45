"""Opens the parts of a run, and closes all of them, whatever happens."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

from etils import epath

from realm_jax.answers.run_answers import RunAnswers
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.files.kept_configuration import keep_configuration
from realm_jax.files.object_store.store_access import (
  require_readable,
  require_writable,
)
from realm_jax.files.sole_process import (
  SoleProcess,
  SoleProcessError,
  sole_process,
)
from realm_jax.generations.follow.loading import Generation, load_generation
from realm_jax.generations.store import layout
from realm_jax.inputs.batches import BatchStream
from realm_jax.models.retriever import embed_queries
from realm_jax.partitioning import sharding
from realm_jax.partitioning.agreement import Agreement
from realm_jax.training.candidates import Candidates
from realm_jax.training.checkpointing import Checkpointer, LoopState
from realm_jax.training.compilation import CompiledSteps
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.device_generations import DeviceGenerationLoader
from realm_jax.training.generations import GenerationSchedule
from realm_jax.training.goodput import Goodput
from realm_jax.training.metrics import MetricsLog
from realm_jax.training.own_index import OwnIndex
from realm_jax.training.retrieval import RetrievalPipeline
from realm_jax.training.search_in_step import SearchInStep
from realm_jax.training.setup import RunSetup, set_up
from realm_jax.training.stages.stage import StepBatch
from realm_jax.training.state import (
  TrainState,
  abstract_state,
  create_state,
)


@dataclasses.dataclass(frozen=True)
class Run:
  """The opened parts of a run, as `run_steps` takes them."""

  step_function: CompiledSteps
  candidates: Candidates
  checkpoints: Checkpointer
  decisions: Decisions
  metrics: MetricsLog
  goodput: Goodput
  # On process 0, the right to write to MODEL_DIR.
  sole: SoleProcess = dataclasses.field(default_factory=SoleProcess)


@contextlib.contextmanager
def open_run(
  config: TrainConfig, configuration: Mapping[str, str] | None = None
) -> Iterator[tuple[TrainState, Run | None]]:
  """Opens a run from its last checkpoint, or a new one.

  What it is to keep of its configuration is written before checkpoint 0.

  Yields the state before the next step, and the parts of the run, or None if
  all steps are done. Raises what `realm_jax.training.loop.train` does.
  """
  goodput = Goodput()
  with contextlib.ExitStack() as stack:
    store = CheckpointStore(
      config.model_dir,
      keep=config.checkpoints.keep_checkpoints,
    )
    decisions = Decisions(
      stack.enter_context(stop_on_sigterm()),
      num_steps=config.num_steps,
      save_every_steps=config.checkpoints.save_every_steps,
      check=store.check,
    )
    _require_access(config)
    setup = set_up(config)
    decisions.loop.require_same(
      {
        "TrainConfig": config,
        "the corpus": setup.corpus.fingerprint,
        "the corpus of the examples": setup.examples.fingerprint,
      }
    )
    sole = _sole_trainer(config, decisions.loop, stack)
    stack.callback(store.close)
    checkpoints = Checkpointer(store, setup.identity, config.checkpoints)
    # What is restored needs no initial values, and no memory for them.
    make_state = abstract_state
    if not store.steps():
      make_state = functools.partial(create_state, seed=config.data.seed)
    state, loop_state = checkpoints.initialize_or_restore(
      make_state(
        setup.init,
        setup.optimizer,
        mesh=setup.mesh,
        axis_rules=config.mesh.all_axis_rules,
      )
    )
    examples = BatchStream(
      dataclasses.replace(config.data, corpus_version=setup.examples.version),
      rows=setup.own_rows,
      positions=loop_state.positions,
    )
    stack.callback(examples.close)
    step = int(state.step)
    own_index = None
    if config.keeps_own_index and step < config.num_steps:
      own_index = OwnIndex(setup, decisions, checkpoints)
    if configuration is not None:
      keep = functools.partial(
        keep_configuration, config.model_dir, configuration
      )
      decisions.loop.on_process_0("configuration", keep)
    # The first generation is built from checkpoint 0. It is not saved before
    # everything that it needs has been found to be there.
    if not store.steps():
      with goodput.measure("saving"):
        checkpoints.save(state, loop_state)
    if step >= config.num_steps:
      yield state, None
      return
    if decisions.loop.index == 0:
      goodput.resume(config.model_dir, step)
    metrics = MetricsLog(
      config.model_dir,
      start_step=step,
      num_steps=config.num_steps,
      examples_per_step=config.data.batch_size,
      freeze_retriever_steps=config.optimizer.freeze_retriever_steps,
      writes=decisions.loop.is_leader,
    )
    stack.callback(metrics.close)
    candidates = open_candidates(
      setup, examples, decisions, loop_state, stack, goodput, own_index
    )
    with goodput.measure("compiling"):
      search = _search(setup, own_index) if config.retrieve_on_device else None
      step_function = CompiledSteps(setup, setup.layout(setup.corpus), search)
      if search is None:
        step_function.compile(state, setup.abstract_batch())
    goodput.started()
    yield (
      state,
      Run(
        step_function,
        candidates,
        checkpoints,
        decisions,
        metrics,
        goodput,
        sole,
      ),
    )


def _require_access(config: TrainConfig) -> None:
  """Checks the buckets that a run reads and writes, before all else.

  Raises:
    StoreAccessError: One of them cannot be used.
  """
  data, checkpoints = config.data, config.checkpoints
  require_readable(
    data.corpus_dir,
    data.pretraining_corpus_dir,
    *data.question_files.values(),
    checkpoints.initial_checkpoint,
    checkpoints.initial_reader,
  )
  require_writable(config.model_dir)


def _sole_trainer(
  config: TrainConfig, agreement: Agreement, stack: contextlib.ExitStack
) -> SoleProcess:
  """Makes process 0 the only one that trains into MODEL_DIR.

  Raises:
    SoleProcessError: MODEL_DIR has a trainer already.
  """
  held = [SoleProcess()]

  def take() -> None:
    held.append(stack.enter_context(sole_process(config.model_dir)))

  agreement.on_process_0("sole trainer", take, (SoleProcessError,))
  return held[-1]


def open_candidates(
  setup: RunSetup,
  examples: BatchStream,
  decisions: Decisions,
  resumed: LoopState,
  stack: contextlib.ExitStack,
  goodput: Goodput,
  own_index: OwnIndex | None = None,
) -> Candidates:
  """Opens the candidate stream, with what it searches.

  That is the index that the run itself keeps, or else generations.
  """
  config, schedule = setup.config, None
  answers = _answers(setup)
  if config.stage.needs_index and own_index is None:
    schedule = _open_schedule(setup, decisions, stack, goodput)
  pipeline: RetrievalPipeline[StepBatch] = RetrievalPipeline(
    sharding.shared_partial(
      sharding.under(config.mesh.all_axis_rules, embed_queries),
      setup.models.retriever,
    ),
    mesh=setup.mesh,
  )
  stack.callback(pipeline.close)
  return Candidates(
    setup,
    examples,
    pipeline=pipeline,
    schedule=schedule,
    decisions=decisions,
    resumed=resumed,
    answers=answers,
    own_index=own_index,
  )


def _search(setup: RunSetup, own_index: OwnIndex | None) -> SearchInStep:
  """Returns the search in the step."""
  stage = setup.config.stage
  return SearchInStep(
    retriever=setup.models.retriever,
    num_candidates=stage.num_candidates,
    current_queries=stage.current_queries or own_index is not None,
    mesh=setup.mesh,
    refreshed=None if own_index is None else own_index.part,
  )


def _open_schedule(
  setup: RunSetup,
  decisions: Decisions,
  stack: contextlib.ExitStack,
  goodput: Goodput,
) -> GenerationSchedule:
  """Opens what follows the generations of a run, and loads them."""
  config = setup.config
  directory = epath.Path(config.model_dir) / layout.FOLDER
  load: Callable[..., Generation] = functools.partial(
    load_generation,
    directory,
    corpus=setup.corpus,
    mesh=setup.mesh,
    beside_training=True,
    reads_vectors=config.stage.reads_vectors,
  )
  if config.retrieve_on_device:
    load = DeviceGenerationLoader(directory, load, setup)
  schedule = GenerationSchedule(
    load,
    config.refresh,
    model_dir=config.model_dir,
    num_searched=setup.num_searched,
    every_steps=config.refresh_every_steps,
    decisions=decisions,
    goodput=goodput,
  )
  stack.callback(schedule.close)
  return schedule


def _answers(setup: RunSetup) -> RunAnswers | None:
  """Opens the answers in the run's blocks, for a stage that asks for them.

  They are found meanwhile the first generation is built.
  """
  config = setup.config
  if not config.stage.needs_answers:
    return None
  answers = RunAnswers(
    config.model_dir,
    dataclasses.replace(config.data, corpus_version=setup.corpus.version),
    agreement=Agreement("answers"),
  )
  answers.of(setup.corpus)
  return answers
