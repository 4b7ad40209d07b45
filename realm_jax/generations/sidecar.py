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
from realm_jax.corpus import CorpusError
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
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.refresh import (
  KnownVectors,
  checkpoint_vectors,
  find_base,
  open_base,
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
from realm_jax.storage.sole_process import SoleProcessError, sole_process


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
) -> list[int]:
  """Runs a sidecar until SIGTERM, or for one generation.

  Args:
    model_dir: Directory of the run, which need not have checkpoints yet.
    corpus_dir: Corpus, which may be updated meanwhile.
    generation: Settings of the generations.
    sidecar: Settings of the sidecar.
    generations_dir: Directory for them; None is MODEL_DIR/generations.
    once: Whether to turn on `sidecar.once`.

  Returns:
    The steps that were published.

  Raises:
    ValueError: There is a `checkpoint_step` without `once`.
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
  if once:
    sidecar = dataclasses.replace(sidecar, once=True)
  agreement = Agreement("builder")
  agreement.require_same(
    {"GenerationConfig": generation, "SidecarConfig": sidecar}
  )
  directory = directory_of(model_dir, generations_dir)
  require_readable(model_dir, corpus_dir)
  require_writable(directory)
  with (
    stop_on_sigterm() as stop,
    contextlib.closing(CheckpointStore(model_dir)) as checkpoints,
    contextlib.ExitStack() as roles,
  ):
    checks: list[Callable[[], None]] = []

    def take_role() -> None:
      role = roles.enter_context(
        sole_process(directory, "builder", advice="stop it first")
      )
      checks.append(role.check)

    agreement.on_process_0("only builder", take_role, (SoleProcessError,))
    stop_of_all = agreement.stop_event(stop)
    return follow(
      sidecar,
      generation,
      Corpus.open(corpus_dir),
      checkpoints,
      GenerationStore(directory),
      agreement=Agreement("generations", while_waiting=stop_of_all.is_set),
      stop=stop_of_all,
      check=checks[0] if checks else lambda: None,
    )


def follow(
  config: SidecarConfig,
  generation: GenerationConfig,
  corpus: Corpus,
  checkpoints: CheckpointStore,
  store: GenerationStore,
  *,
  agreement: Agreement,
  stop: threading.Event,
  check: Callable[[], None] = lambda: None,
) -> list[int]:
  """Builds generations of the checkpoints of a run, as each process does.

  Process 0 chooses the checkpoint and the version of the corpus, and removes
  old generations.

  Args:
    config: Settings of the sidecar.
    generation: Settings of the generations.
    corpus: Corpus, in any version.
    checkpoints: Checkpoints of the run.
    store: Store of the generations.
    agreement: Agreement of all processes, each of which calls this.
    stop: Event that ends it.
    check: Function that is called regularly; an exception stops it.

  Returns:
    The steps that were published.

  Raises:
    As `build_index`.
  """
  if config.checkpoint_step is not None and not config.once:
    raise ValueError(
      f"checkpoint_step={config.checkpoint_step} is for one generation; pass "
      "--once"
    )
  chooser = Chooser(config, generation, corpus, checkpoints, store)
  builder: Builder | None = None
  published: list[int] = []

  def check_stop() -> None:
    check()
    if stop.is_set():
      raise PreemptedError

  def choose() -> Choice:
    check()
    return Choice() if stop.is_set() else chooser.choose()

  def prepared() -> tuple[Builder, Params, KnownVectors | None]:
    version = corpus.at(choice.corpus_version, choice.corpus_fingerprint)
    made = builder
    if made is None or made.corpus is not version:
      made = Builder(generation, version)
    return made, *_restored(made, checkpoints, choice.step)

  name = secrets.token_hex(4) if is_remote(store.directory) else ""
  name = agreement.on_process_0("name", lambda: name)
  agreement.on_process_0("damage", store.remove_damaged)
  while True:
    choice = Choice(*agreement.on_process_0("choice", choose, SHARED_ERRORS))
    if choice.ends:
      return published
    if choice.step < 0:
      stop.wait(config.poll_seconds)
      continue
    try:
      builder, params, known = agreement.on_all_processes(
        "checkpoint", prepared, (_RemovedCheckpointError, *SHARED_ERRORS)
      )
      if known is None:
        known = _base_vectors(builder, choice.step, store, agreement)
      build_generation(
        builder,
        choice.step,
        params,
        store,
        agreement=agreement,
        known=known,
        builder_name=name,
        check=check_stop,
      )
      published.append(choice.step)
    except (RecallError, UnreadableCheckpointError) as error:
      # A trainer that was killed may have left an old one half removed.
      must_be = choice.is_newest
      if isinstance(error, RecallError):
        must_be = config.skips_none
      if config.once or must_be:
        raise
      chooser.skipped.add(choice.step)
      logging.error("generation %d is not built: %s", choice.step, error)
    except DiskFullError as error:
      if config.once:
        raise
      logging.error("%s; trying again later", error)
      agreement.on_process_0(
        "room", lambda: store.remove_old_files(max_removed=0)
      )
      stop.wait(config.retry_seconds)
    except _RemovedCheckpointError as error:
      logging.warning("%s", error)
    except PreemptedError:
      continue
    agreement.on_process_0("removal", chooser.prune)
    if config.once and published:
      return published


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


def _base_vectors(
  builder: Builder, step: int, store: GenerationStore, agreement: Agreement
) -> KnownVectors | None:
  """Returns the vectors that a partial refresh may copy, if it is one.

  They are those of an earlier generation, the same in all processes.
  """
  corpus, config = builder.corpus, builder.config
  if config.refresh_fraction is None:
    return None
  base = agreement.on_process_0(
    "base",
    lambda: find_base(
      store, step, corpus=corpus, model=builder.model, dtype=config.stored_dtype
    ),
  )
  if base is None:
    return None
  try:
    return agreement.on_all_processes(
      "vectors of the base",
      functools.partial(open_base, store, base, corpus),
      (GenerationError, CorpusError),
    )
  except (GenerationError, CorpusError) as error:
    logging.warning("generation %d embeds every block: %s", step, error)
    return None


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
  indexes = {
    "scann": scann,
    "exact": exact,
    "faiss": faiss,
    "bm25": bm25,
    "random": random,
  }
  store = GenerationStore(directory_of(model_dir, generations_dir))
  if steps := store.steps():
    return indexes[store.manifest(steps[-1]).index_kind]
  if index_scores:
    return bm25
  return exact if retrieve_on_device else scann
