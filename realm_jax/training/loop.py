"""Training: one loop for all stages.

A step s (the first is 0) goes like this:

1. the batch of step s was searched for while step s − 1 ran;
2. the batch of step s + 1 is read, and its queries are embedded and searched
   with the generation of step s + 1;
3. the jitted step s is dispatched, and its metrics are read two steps later;
4. every `save_every_steps` the state after s + 1 steps is saved, with the
   data position and what was found for the step after, so that a run that
   is killed goes on exactly as if it had not been.
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.indexes.protocol import IndexCrashedError, SearchResult
from realm_jax.inputs.batches import Batch, BatchStream
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import (
  Retriever,
  embed_queries,
  query_tower_parameters,
)
from realm_jax.partitioning.mesh import DATA_AXIS, make_mesh
from realm_jax.retrieval.pipeline import Prepared, RetrievalPipeline
from realm_jax.training.collapse import CollapseMonitor
from realm_jax.training.compiled_steps import compile_steps
from realm_jax.training.corpus_versions import corpus_of_run
from realm_jax.training.following import follow_builder
from realm_jax.training.initial import begin_or_go_on
from realm_jax.training.metrics_log import MetricsLog, NonFiniteLossError
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.packing import BatchPacker
from realm_jax.training.refresh import (
  NOTHING_TO_SEARCH,
  GenerationSchedule,
  RefreshConfig,
  StoppedWaiting,
)
from realm_jax.training.resume import LoopState, RunIdentity, save
from realm_jax.training.rooms import choose_rooms
from realm_jax.training.run_lock import run_lock
from realm_jax.training.stages import Models, Stage
from realm_jax.training.state import create_state
from realm_jax.training.step_texts import StepTexts


def train(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  task: str,
  stage: Stage,
  retriever: Retriever,
  optimizer: OptimizerConfig,
  num_steps: int,
  batch_size: int,
  query_length: int,
  block_length: int,
  reader: Reader | None = None,
  question_files: Mapping[str, str] | None = None,
  initial_checkpoint: epath.PathLike | None = None,
  initial_reader: epath.PathLike | None = None,
  refresh: RefreshConfig | None = None,
  save_every_steps: int = 500,
  keep_checkpoints: int = 3,
  seed: int = 0,
  model_parallelism: int = 1,
  pack: bool = True,
  task_modules: Sequence[str] = ("tasks",),
) -> dict[str, Any]:
  """Trains one stage, from the last checkpoint of MODEL_DIR if it has one.

  Args:
    model_dir: where checkpoints, generations and metrics of this run live.
    corpus_dir: what `build_corpus` wrote; examples come from the version that
      the run began with, and each generation is searched in its own.
    task: the name of a seqio task.
    stage: `InverseCloze`, `Reading`, `Pretraining` or `OpenQa`.
    retriever: the towers; their vocabulary is the corpus's.
    optimizer: BERT's Adam.
    num_steps: of the whole run; the learning rate ends at zero there.
    batch_size: the global batch.
    query_length: wordpieces of a query, with [CLS] and [SEP].
    block_length: wordpieces of a block, with its title and the three specials.
    reader: the reader, for the stages that have one.
    question_files: JSON Lines of questions by split, for open QA.
    initial_checkpoint: the stage before: a MODEL_DIR or one of its steps.
    initial_reader: another checkpoint to take the reader from.
    refresh: how the index builder is followed; None takes the newest.
    save_every_steps: the distance of checkpoints, and so of generations.
    keep_checkpoints: how many of the latest are kept; step 0 always is.
    seed: of initial values, data order, masks and dropout.
    model_parallelism: devices that share one copy of the parameters.
    pack: whether short sequences share rows; otherwise all are padded to the
      longest there may be, and the padding is computed on, too.
    task_modules: modules that add seqio tasks when they are imported.

  Returns:
    `step` (how many are done), `swaps` (generations swapped in), `metrics` (of
    the last step) and `stopped` (whether SIGTERM ended it early).

  Raises:
    RunLockError: MODEL_DIR has a trainer already.
    CheckpointError: a checkpoint is missing or does not fit.
    CorpusError: there is no corpus, or block_length would cut its blocks.
    NonFiniteLossError: the loss is NaN; the last good checkpoint stays.
  """
  if batch_size % jax.process_count():
    raise ValueError(
      f"batch_size={batch_size} is not a multiple of the "
      f"{jax.process_count()} processes"
    )
  refresh = refresh or RefreshConfig()
  waits = stage.needs_index and refresh.refresh and refresh.wait
  if waits:
    refresh.require_lag_fits(
      keep_checkpoints=keep_checkpoints,
      save_every_steps=save_every_steps,
      num_steps=num_steps,
    )
  corpus = corpus_of_run(model_dir, corpus_dir)
  corpus.require_whole_blocks(block_length)
  identity = RunIdentity(
    seed=seed,
    batch_size=batch_size,
    num_searched=stage.num_searched(corpus.num_blocks),
    save_every_steps=save_every_steps if waits else 0,
    lag_steps=refresh.lag_steps if waits else 0,
    vocabulary=corpus.vocab_sha256,
    corpus_version=corpus.version,
    corpus_fingerprint=corpus.fingerprint,
  )
  mesh = make_mesh(model_parallelism=model_parallelism)
  if batch_size % mesh.shape[DATA_AXIS]:
    raise ValueError(
      f"batch_size={batch_size} is not a multiple of the "
      f"{mesh.shape[DATA_AXIS]} devices of the data axis; change BATCH_SIZE"
    )
  vocabulary = {
    "vocab_size": corpus.vocabulary.vocab_size,
    "separator_id": corpus.vocabulary.sep_id,
  }
  models = Models(
    retriever.for_vocabulary(**vocabulary),
    None if reader is None else reader.for_vocabulary(**vocabulary),
  )
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      stack.enter_context(run_lock(model_dir))
    stop = stack.enter_context(stop_on_sigterm())
    store = CheckpointStore(model_dir, keep=keep_checkpoints, read_only=False)
    stack.callback(store.close)
    update = make_optimizer(optimizer, num_steps=num_steps)
    lengths = {"query": query_length, "block": block_length}
    state, shardings = create_state(
      functools.partial(stage.init, models, lengths),
      update,
      seed=seed,
      mesh=mesh,
    )
    is_new = not store.steps()
    state, place = begin_or_go_on(
      store,
      state,
      {
        "retriever": initial_checkpoint,
        "reader": initial_reader or initial_checkpoint,
      },
      identity=identity,
      required=() if initial_reader is None else ("reader",),
    )

    stream = BatchStream(
      task,
      split="train",
      corpus_dir=corpus_dir,
      question_files=question_files,
      corpus_version=corpus.version,
      batch_size=batch_size,
      query_length=query_length,
      block_length=block_length,
      seed=seed,
      start_position=place.position,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
      task_modules=task_modules,
    )
    stack.callback(stream.close)
    loss = stage.loss(models)
    if is_new:
      # The first generation is made from step 0, and a run that fails early
      # leaves something to go on from.
      save(store, state, place, identity=identity)
    start = int(state.step)
    if start >= num_steps:
      logging.info("%s is trained already: step %d", model_dir, start)
      return {"step": start, "swaps": 0, "metrics": {}, "stopped": False}

    schedule: GenerationSchedule | None = None
    if stage.needs_index:
      schedule = follow_builder(
        model_dir,
        refresh,
        corpus=corpus,
        num_searched=identity.num_searched,
        mesh=mesh,
        save_every_steps=save_every_steps,
        is_stopping=stop.is_set,
        stack=stack,
      )
    pipeline = RetrievalPipeline(
      functools.partial(embed_queries, models.retriever), mesh=mesh
    )
    stack.callback(pipeline.close)
    log = MetricsLog(
      model_dir,
      start_step=start,
      num_steps=num_steps,
      examples_per_step=batch_size,
      is_writer=jax.process_index() == 0,
    )
    stack.callback(log.close)

    packer: BatchPacker | None = None
    if pack:
      shapes = stage.text_shapes(
        batch_size // jax.process_count(), query_length, block_length
      )
      texts = StepTexts(
        stage.parts,
        retriever=models.retriever,
        reader=models.reader,
        groups=mesh.shape[DATA_AXIS] // jax.process_count(),
      )
      packer = BatchPacker(texts, choose_rooms(texts, shapes, corpus=corpus))

    def prepare(batch: Batch, generation: Any, found: Any = None):
      def assemble(found: SearchResult):
        arrays, metrics = stage.assemble(
          batch,
          found,
          corpus=corpus if generation is None else generation.corpus,
          generation=generation,
          block_length=block_length,
        )
        return (packer(arrays) if packer else arrays), metrics

      if generation is None:
        return pipeline.without_search(assemble)
      if found is not None:
        return pipeline.resume(found, assemble)
      return pipeline.search(
        batch.arrays["query"],
        query_params=(
          query_tower_parameters(models.retriever, state.params["retriever"])
          if stage.current_queries and generation.index.needs_vectors
          else generation.query_params
        ),
        index=generation.index,
        num_blocks=identity.num_searched,
        assemble=assemble,
      )

    def survive(pending: Future[Prepared], batch: Batch, generation: Any):
      """Waits for a batch, from another index where its own has crashed."""
      while isinstance(error := pending.exception(), IndexCrashedError):
        if schedule is None:
          raise error
        generation = schedule.after_crash(error)
        pending = prepare(batch, generation)
      return pending, generation

    def checkpoint(position: int, generation: Any, found: Any) -> None:
      try:
        log.flush()
      except NonFiniteLossError as error:
        raise _with_last_good(error, store) from None
      save(
        store,
        state,
        LoopState.at(position, generation, found),
        identity=identity,
      )

    batches = iter(stream)
    try:
      generation: Any = None
      if schedule is not None:
        generation = schedule.start(start, place.generation)
    except StoppedWaiting:
      logging.info("told to stop: left at step %d", start)
      return {"step": start, "swaps": 0, "metrics": {}, "stopped": True}
    batch = next(batches)
    found = None
    if place.found and place.generation == generation.step:
      found = place.found.in_rows(generation.corpus)
      if not found:
        logging.warning(
          "generation %d was made again, of other blocks: searching it anew",
          generation.step,
        )
    pending = prepare(batch, generation, found)
    pending, generation = survive(pending, batch, generation)
    run_step = compile_steps(
      state,
      pending.result().batch,
      packer.rooms if packer else None,
      shardings=shardings,
      loss=loss,
      optimizer=update,
      seed=seed,
      mesh=mesh,
      hold=start < optimizer.hold_retriever_steps,
      release=optimizer.hold_retriever_steps < num_steps,
    )
    monitor = CollapseMonitor()
    position, saved = place.position, start
    for step in range(start, num_steps):
      pending, generation = survive(pending, batch, generation)
      prepared, searched = pending.result(), generation
      next_position = batch.next_position
      has_next = step + 1 < num_steps
      if has_next:
        batch = next(batches)
        try:
          if schedule is not None:
            generation = schedule.at(step + 1)
        except NOTHING_TO_SEARCH as reason:
          if step > saved:
            checkpoint(position, searched, prepared.found)
          if not isinstance(reason, StoppedWaiting):
            raise
          logging.info("told to stop: left at step %d", step)
          break
        pending = prepare(batch, generation)
      holds = step < optimizer.hold_retriever_steps
      state, metrics = run_step(state, prepared.batch, hold_retriever=holds)
      position = next_position
      host_metrics = dict(prepared.metrics)
      if searched is not None:
        host_metrics["staleness_steps"] = step - searched.oldest_step
        host_metrics["generation"] = searched.step
        host_metrics["corpus_version"] = searched.corpus.version
      try:
        known = log.push(step + 1, metrics, host_metrics)
      except NonFiniteLossError as error:
        raise _with_last_good(error, store) from None
      if known and not holds and (warning := monitor.update(known)):
        logging.warning("step %d: %s", step + 1, warning)
      is_told = stop.is_set()
      if is_told or not has_next or (step + 1) % save_every_steps == 0:
        found = None
        if has_next:
          pending, generation = survive(pending, batch, generation)
          found = pending.result().found
        checkpoint(position, generation, found)
        saved = step + 1
      if is_told and has_next:
        logging.info("told to stop: saved step %d, and left", step + 1)
        break
    store.wait()
    return {
      "step": int(state.step),
      "swaps": schedule.swaps if schedule else 0,
      "metrics": log.last,
      "stopped": int(state.step) < num_steps,
    }


def _with_last_good(
  error: NonFiniteLossError, store: CheckpointStore
) -> NonFiniteLossError:
  store.wait()
  return NonFiniteLossError(
    f"{error}; the last good checkpoint, step {store.latest()} of "
    f"{store.directory}, is left as it is: go on from it with a lower "
    "learning rate"
  )
