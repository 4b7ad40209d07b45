"""The sidecar: follows a run's checkpoints and publishes generations.

It shares files with the trainer and nothing else; either may be killed,
restarted or moved to another host. Its processes, each with its own devices,
are those of one command: they start together, share the work of a generation
and stop together.
"""

import contextlib
import dataclasses
import functools
import secrets
import threading
from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointStore,
  UnreadableCheckpointError,
)
from realm_jax.console import stop_on_sigterm
from realm_jax.corpus.store import Corpus
from realm_jax.generations.build import (
  SHARED_ERRORS,
  Builder,
  GenerationConfig,
  PreemptedError,
  build_generation,
)
from realm_jax.generations.choice import (
  Choice,
  Chooser,
  SidecarConfig,
  is_removed,
)
from realm_jax.generations.refresh import (
  KnownVectors,
  checkpoint_vectors,
)
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import IndexConfig, RecallError
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.models.parameters import Params
from realm_jax.partitioning.agreement import Agreement
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.paths import is_remote
from realm_jax.storage.sole_process import (
  SoleProcess,
  SoleProcessError,
  sole_process,
)
from realm_jax.storage.staging import DamagedFileError


class _RemovedCheckpointError(CheckpointError):
  """A checkpoint that was removed while it was read."""


_SIDECAR = SidecarConfig()


def build_index(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  generation: GenerationConfig,
  sidecar: SidecarConfig = _SIDECAR,
  generations_dir: epath.PathLike | None = None,
  once: bool = False,
  stop: threading.Event | None = None,
) -> list[int]:
  """Builds generations of the checkpoints of a run, until SIGTERM or for one.

  Args:
    model_dir: Directory of the run, which need not have checkpoints yet.
    corpus_dir: Corpus, which may be updated meanwhile.
    generation: Settings of the generations.
    sidecar: Settings of the sidecar.
    generations_dir: Directory for them; None is MODEL_DIR/generations.
    once: Whether to turn on `sidecar.once`.
    stop: Event that ends it; None is one that SIGTERM sets.

  Returns:
    The steps that were published.

  Raises:
    DiskFullError: The disk is full, with `once`; otherwise the sidecar waits.
    CheckpointError: A checkpoint does not fit the model, the newest one cannot
      be read, or that of `checkpoint_step` is gone. Other unreadable ones are
      skipped.
    ProcessesError: The processes differ, or another one has failed.
    SoleProcessError: Another sidecar builds these generations already.
    StoreAccessError: A bucket cannot be read or written.
    RecallError: With `once` or in the mode `every`, the recall of an index is
      below what its settings want; otherwise the checkpoint is skipped.
  """
  once = once or sidecar.once or sidecar.checkpoint_step is not None
  config = dataclasses.replace(sidecar, once=once)
  agreement = Agreement("builder")
  agreement.require_same(
    {"GenerationConfig": generation, "SidecarConfig": config}
  )
  directory = directory_of(model_dir, generations_dir)
  require_readable(model_dir, corpus_dir)
  require_writable(directory)
  with contextlib.ExitStack() as stack:
    stop = agreement.stop_event(stop or stack.enter_context(stop_on_sigterm()))
    checkpoints = CheckpointStore(model_dir)
    stack.callback(checkpoints.close)
    roles: list[SoleProcess] = []

    def take_role() -> str:
      role = sole_process(directory, "builder", advice="stop it first")
      roles.append(stack.enter_context(role))
      return secrets.token_hex(4) if is_remote(directory) else ""

    def check() -> None:
      for role in roles:
        role.check()
      if stop.is_set():
        raise PreemptedError

    name = agreement.on_process_0("role", take_role, (SoleProcessError,))
    published: list[int] = []
    with contextlib.suppress(PreemptedError):
      _follow(
        config,
        generation,
        Corpus.open(corpus_dir),
        checkpoints,
        GenerationStore(directory, builder=name),
        published,
        agreement=Agreement("generations", while_waiting=stop.is_set),
        stop=stop,
        check=check,
      )
    return published


def _follow(
  config: SidecarConfig,
  generation: GenerationConfig,
  corpus: Corpus,
  checkpoints: CheckpointStore,
  store: GenerationStore,
  published: list[int],
  *,
  agreement: Agreement,
  stop: threading.Event,
  check: Callable[[], None],
) -> None:
  """Builds generations until `check` raises PreemptedError, or for `once`.

  Process 0 chooses the checkpoint and the version of the corpus, and removes
  old generations. The steps are added to those `published`.
  """
  chooser = Chooser(config, generation, corpus, checkpoints, store)

  def choose() -> Choice:
    check()
    return chooser.choose()

  @functools.lru_cache(maxsize=1)
  def builder_of(version: int, fingerprint: str) -> Builder:
    return Builder(generation, corpus.at(version, fingerprint))

  def restore(
    choice: Choice, step: int
  ) -> tuple[Builder, Params, KnownVectors | None]:
    builder = builder_of(choice.corpus_version, choice.corpus_fingerprint)
    return builder, *_restored(builder, checkpoints, step)

  agreement.on_process_0("damage", store.remove_damaged)
  while not (config.once and published):
    choice = Choice(*agreement.on_process_0("choice", choose, SHARED_ERRORS))
    if choice.ends:
      return
    if (step := choice.step) is None:
      stop.wait(config.poll_seconds)
      continue
    try:
      builder, params, known = agreement.on_all_processes(
        "checkpoint",
        functools.partial(restore, choice, step),
        (_RemovedCheckpointError, *SHARED_ERRORS),
      )
      build_generation(
        builder,
        step,
        params,
        store,
        agreement=agreement,
        known=known,
        check=check,
      )
      published.append(step)
    except (RecallError, UnreadableCheckpointError) as error:
      # A trainer that was killed may have left an old one half removed.
      must_be = choice.is_newest
      if isinstance(error, RecallError):
        must_be = config.skips_none
      if config.once or must_be:
        raise
      chooser.skipped.add(step)
      logging.error("generation %d is not built: %s", step, error)
    except DiskFullError as error:
      if config.once:
        raise
      logging.error("%s; trying again later", error)
      make_room = functools.partial(store.remove_old_files, max_removed=0)
      agreement.on_process_0("room", make_room)
      stop.wait(config.retry_seconds)
    except (DamagedFileError, _RemovedCheckpointError) as error:
      logging.warning("%s", error)
      # Another host may see a network file system's files a little later.
      stop.wait(config.poll_seconds)
    agreement.on_process_0("removal", chooser.prune)


def _restored(
  builder: Builder, checkpoints: CheckpointStore, step: int
) -> tuple[Params, KnownVectors | None]:
  """Restores the retriever of a checkpoint to the devices, and its vectors.

  Raises:
    CheckpointError: The checkpoint is of another model or vocabulary, cannot be
      read, or was removed meanwhile.
  """
  like = {"retriever": builder.abstract_params()}
  try:
    checkpoints.require_vocabulary(step, builder.corpus.vocab_sha256)
    restored = checkpoints.restore(step, items=("retriever",), like=like)
    own = checkpoint_vectors(checkpoints, step, builder.corpus)
    return restored["retriever"], own
  except (ValueError, OSError) as error:
    if not is_removed(checkpoints, step):
      raise
    raise _RemovedCheckpointError(
      f"checkpoint {step} was removed meanwhile ({error})"
    ) from error


def index_of_run(
  *,
  model_dir: epath.PathLike,
  scann: ScannConfig,
  exact: ExactConfig,
  faiss: FaissConfig,
  bm25: Bm25Config,
  random: RandomConfig,
  generations_dir: epath.PathLike | None = None,
  index_scores: bool = False,
  retrieve_on_device: bool = False,
) -> IndexConfig:
  """Returns the index that a run is searched by.

  It is of the kind of the newest generation, if there is one, or else of the
  one that the run needs: BM25 for a run that learns on the `index_scores`, the
  exact index for one that can `retrieve_on_device`, ScaNN's for all others.
  """
  indexes = (scann, exact, faiss, bm25, random)
  store = GenerationStore(directory_of(model_dir, generations_dir))
  if steps := store.steps():
    kind = store.manifest(steps[-1]).index_kind
    return next(index for index in indexes if index.kind == kind)
  if index_scores:
    return bm25
  return exact if retrieve_on_device else scann
