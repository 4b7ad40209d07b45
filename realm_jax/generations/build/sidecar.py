"""The index builder: follows checkpoints and publishes generations.

It shares files with the trainer and nothing else; either may die, start again
or run elsewhere. Several builders of one run share the work.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import (
  CheckpointError,
  CheckpointStore,
  UnreadableCheckpointError,
)
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.build.artifacts import (
  EmbeddingConfig,
  GenerationMaker,
)
from realm_jax.generations.build.generation_builder import GenerationBuilder
from realm_jax.generations.build.partial_refresh import PartialRefresh
from realm_jax.generations.store import damage_reports as refused
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.generations.store.publisher import (
  DiskFullError,
  prune,
  remove_damaged,
  remove_leftovers,
)
from realm_jax.generations.store.retention import (
  NamedGenerations,
  UnknownNeedsError,
  is_removed,
)
from realm_jax.indexes.protocol import IndexConfig, RecallError
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning.mesh import make_mesh

MODES = ("newest", "every")
_REMINDER_SECONDS = 30.0


class _StoppedError(Exception):
  """SIGTERM came; what is half done is dropped."""


def build_index(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  index: IndexConfig,
  config: EmbeddingConfig | None = None,
  partial: PartialRefresh | None = None,
  mode: str = "newest",
  once: bool = False,
  keep_generations: int = 3,
  poll_seconds: float = 1.0,
  retry_seconds: float = 30.0,
  generations_dir: epath.PathLike | None = None,
  checkpoint_step: int | None = None,
) -> list[int]:
  """Follows a run's checkpoints and publishes a generation for them.

  A generation is built on the newest version of the corpus that there is when
  it begins. In the mode `newest`, and with `once`, that of the newest
  checkpoint is made again when the corpus has a newer version, so that what
  searches it (a run that is over, above all) finds what is new. In the mode
  `every` one that stands stays on its version, since a run that resumes must
  meet it again; the next checkpoint's has the newer.

  Args:
    model_dir: the run whose checkpoints to follow; they need not exist yet.
    corpus_dir: what `build_corpus` wrote; it may be updated meanwhile.
    retriever: the towers.
    index: the search structure.
    config: how to embed.
    partial: how much to embed anew of each generation; None is everything.
    mode: `newest` goes from the newest checkpoint to the newest; `every`
      skips none, for a trainer that waits for them.
    once: make one generation and return: the newest checkpoint's, or first the
      one that it names as in use, should that be gone.
    keep_generations: how many of the latest stay; whatever is leased, or
      named by a checkpoint that is kept, stays too.
    poll_seconds: how often to look for checkpoints.
    retry_seconds: how long to wait for room on a full disk.
    generations_dir: where they go; None is MODEL_DIR/generations.
    checkpoint_step: with `once`, the checkpoint to take instead of the newest.

  Returns:
    The steps published, when told to stop (SIGTERM) or after one.

  Raises:
    DiskFullError: with `once`, there is no room.
    CheckpointError: a checkpoint does not fit this model, or that of
      `checkpoint_step` is gone, or the newest cannot be read. Others that
      cannot are left out.
    RecallError: with `once` or in the mode `every`, an index finds less than
      its settings want; otherwise the next checkpoint is waited for.
  """
  if mode not in MODES:
    raise ValueError(f"mode={mode!r}; want one of {', '.join(MODES)}")
  if keep_generations < 1:
    raise ValueError(
      f"keep_generations={keep_generations}; want at least the newest, 1"
    )
  if checkpoint_step is not None and not once:
    raise ValueError(
      f"checkpoint_step={checkpoint_step} is for making one generation; pass "
      "--once"
    )
  corpus = Corpus.open(corpus_dir)
  generations_dir = epath.Path(
    generations_dir or epath.Path(model_dir) / layout.FOLDER
  )
  new_maker = functools.partial(
    GenerationMaker,
    retriever=retriever,
    index=index,
    config=config,
    mesh=make_mesh(devices=jax.local_devices()),
  )
  new_builder = functools.partial(
    GenerationBuilder,
    model_dir=model_dir,
    generations_dir=generations_dir,
    partial=partial,
  )
  maker = new_maker(corpus)
  builder = new_builder(maker)
  every = mode == "every" and not once
  store = CheckpointStore(model_dir)
  named = NamedGenerations(store)
  published: list[int] = []
  given_up: set[int] = set()
  remove_leftovers(generations_dir)
  remove_damaged(generations_dir)

  def is_of_use(step: int) -> bool:
    """Whether shards of a step may still become a generation."""
    steps = store.steps()
    wanted = {*steps[-1:], *named.by(steps[-1:])}
    if mode == "every" or checkpoint_step is not None:
      wanted.update(steps)
    return step in wanted.intersection(steps) - _standing(
      generations_dir, maker, () if every else steps[-1:]
    )

  with stop_on_sigterm() as stop, contextlib.closing(store):
    waiting = _Waiting(store)
    while not stop.is_set():
      if (newest := _newest_version(maker.corpus)) is not maker.corpus:
        maker = new_maker(newest)
        builder = new_builder(maker)
      if told := refused.take(generations_dir):
        remove_damaged(generations_dir, told)
      steps = store.steps()
      if checkpoint_step is not None:
        steps = _only(checkpoint_step, steps, store)
      renewed = () if every else steps[-1:]
      step = next_step(
        steps,
        standing=_standing(generations_dir, maker, renewed) | given_up,
        needed=named.by(steps[-1:]),
        every=every,
      )
      if step is None and not (once and steps):
        waiting.say(bool(steps))
        stop.wait(poll_seconds)
        continue
      if step is None:
        logging.info("the generation of step %d stands already", steps[-1])
        return published
      try:
        params = _restored(maker, store, step)
        if params is not None and _build_one(
          builder,
          step,
          params,
          is_of_use,
          any_version=step not in renewed,
          stop=stop,
        ):
          published.append(step)
      except RecallError as error:
        if once or every:
          raise
        given_up.add(step)
        logging.error("generation %d is not published: %s", step, error)
      except UnreadableCheckpointError as error:
        # A trainer that was killed may have begun to remove an old one.
        if once or step == steps[-1]:
          raise
        given_up.add(step)
        logging.error("generation %d is not made: %s", step, error)
      except DiskFullError as error:
        if once:
          raise
        logging.error("%s; trying again later", error)
        stop.wait(retry_seconds)
      except _StoppedError:
        break
      try:
        pinned = named.pinned(every=mode == "every")
        removed = prune(generations_dir, keep=keep_generations, pinned=pinned)
        if removed:
          logging.info("removed generations %s", removed)
      except UnknownNeedsError as error:
        logging.warning("no generation is removed this time: %s", error)
      if once and published:
        return published
    logging.info("told to stop; what is published stays")
    return published


def next_step(
  checkpoints: Sequence[int],
  *,
  standing: set[int],
  needed: set[int],
  every: bool,
) -> int | None:
  """Which checkpoint to make a generation of; None where none is wanted.

  Args:
    checkpoints: the committed steps, in order.
    standing: steps whose generation is published and as wanted.
    needed: generations that a run resumed from its newest checkpoint uses.
    every: whether to skip none.
  """
  candidates = list(checkpoints) if every else list(checkpoints[-1:])
  lost = [step for step in checkpoints if step in needed]
  for step in lost + candidates:
    if step not in standing:
      return step
  return None


def _only(step: int, steps: Sequence[int], store: CheckpointStore) -> list[int]:
  """The one step wanted; empty where it may still come."""
  if step not in steps and steps and steps[-1] > step:
    raise CheckpointError(
      f"{store.directory} has no checkpoint of step {step}, and its newest is "
      f"later; it has {list(steps)}: choose one of them as CHECKPOINT_STEP"
    )
  return [step] if step in steps else []


def _restored(maker: GenerationMaker, store: CheckpointStore, step: int) -> Any:
  """The retriever of a checkpoint; None where that was removed meanwhile."""
  try:
    like = {"retriever": maker.abstract_params()}
    require_vocabulary(store, step, maker.vocabulary)
    return store.restore(step, items=("retriever",), like=like)["retriever"]
  except (ValueError, OSError) as error:
    if not is_removed(store, step):
      raise
    logging.warning("checkpoint %d was removed meanwhile (%s)", step, error)
    return None


def _build_one(
  builder: GenerationBuilder,
  step: int,
  params: Any,
  is_of_use: Callable[[int], bool],
  *,
  any_version: bool,
  stop: threading.Event,
) -> bool:
  """Builds and publishes; False where there was nothing left to do."""

  def check():
    if stop.is_set():
      raise _StoppedError

  logging.info(
    "building the generation of step %d on version %d of the corpus",
    step,
    builder.maker.corpus.version,
  )
  if not builder.build(
    step, params, check=check, is_of_use=is_of_use, any_version=any_version
  ):
    if step in layout.published_steps(builder.directory):
      logging.info("generation %d was published by another builder", step)
    else:
      logging.warning("the shards of generation %d were removed", step)
    return False
  manifest = manifests.read(layout.path_of(builder.directory, step))
  logging.info(
    "published generation %d: %d blocks, %s in %.1f s, %s built in %.1f s, "
    "recall %s",
    step,
    manifest.num_blocks,
    "embedded"
    if manifest.partial is None
    else f"{manifest.partial.embedded_blocks} embedded anew",
    manifest.embed_seconds,
    manifest.index_kind,
    manifest.build_seconds,
    ", ".join(f"@{k} {r:.3f}" for k, r in manifest.recall.items()) or "–",
  )
  return True


def _newest_version(corpus: Corpus) -> Corpus:
  """The newest version of a corpus, or itself where none can be opened."""
  try:
    newest = corpus.newest()
  except CorpusError as error:
    logging.log_every_n_seconds(
      logging.WARNING,
      "going on with version %d of the corpus: %s",
      _REMINDER_SECONDS,
      corpus.version,
      error,
    )
    return corpus
  if newest is not corpus:
    logging.info(
      "the corpus has version %d now, of %d blocks",
      newest.version,
      newest.num_blocks,
    )
  return newest


def _standing(
  generations_dir: epath.Path, maker: GenerationMaker, renewed: Sequence[int]
) -> set[int]:
  """The steps whose generation is as wanted.

  Those of `renewed` must be of the newest version of the corpus, others of
  any that there is.
  """
  standing = set()
  for step in layout.published_steps(generations_dir):
    directory = layout.path_of(generations_dir, step)
    try:
      manifest = manifests.read(directory)
      manifests.verify(directory, manifest, checksums=False)
    except GenerationError:
      continue  # It is made again if its turn comes.
    if not maker.replaces(manifest, any_version=step not in renewed):
      standing.add(step)
  return standing


class _Waiting:
  """Says now and then what the builder waits for."""

  def __init__(self, store: CheckpointStore):
    self._store = store
    self._said_at = 0.0
    self._said_of: bool | None = None

  def say(self, has_checkpoint: bool) -> None:
    now = time.monotonic()
    if has_checkpoint:
      if self._said_of is not True:
        logging.info("waiting for the next checkpoint")
    elif self._said_of is None or now - self._said_at > _REMINDER_SECONDS:
      logging.info(
        "no checkpoint yet in %s; waiting for the first, which "
        "`realm_jax.train` writes",
        self._store.directory,
      )
      self._said_at = now
    self._said_of = has_checkpoint
