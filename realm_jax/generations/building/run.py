"""One worker of `build_index`: the sidecar, or a helper of it.

Several workers share the work, each with its own devices. They are the
processes of one command, which stop together, or commands of their own with
`--worker=i/n`.
"""

import contextlib
import dataclasses

import jax
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.corpus.store import Corpus
from realm_jax.files.object_store.store_access import (
  require_readable,
  require_writable,
)
from realm_jax.files.sole_process import sole_process
from realm_jax.generations.building.current_builder import CurrentBuilder
from realm_jax.generations.building.generation_builder import (
  GenerationBuilder,
  GenerationConfig,
)
from realm_jax.generations.building.helper import Helper
from realm_jax.generations.building.sidecar import Sidecar, SidecarConfig
from realm_jax.generations.building.worker import WorkerNumber
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.partitioning.agreement import Agreement

_SIDECAR = SidecarConfig()


def build_index(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  generation: GenerationConfig,
  sidecar: SidecarConfig = _SIDECAR,
  generations_dir: epath.PathLike | None = None,
  once: bool = False,
  worker: str | None = None,
) -> list[int]:
  """Runs one worker of a sidecar until SIGTERM, or for one generation.

  Args:
    model_dir: Directory of the run, which need not have checkpoints yet.
    corpus_dir: Corpus, which may be updated meanwhile.
    generation: Settings of the generations.
    sidecar: Settings of the sidecar.
    generations_dir: Directory for them; None is MODEL_DIR/generations.
    once: Whether to turn on `sidecar.once`.
    worker: Number of this worker, such as 0/4; None is the number of this
      process among those of the command.

  Returns:
    The steps that it published; none for a worker that is not the first.

  Raises:
    DiskFullError: The disk is full, with `once`; otherwise the sidecar waits.
    CheckpointError: A checkpoint does not fit the model, the newest one cannot
      be read, or that of `checkpoint_step` is gone. Other unreadable ones are
      skipped.
    ProcessesError: The processes differ, or another one has failed.
    SoleProcessError: Another process is this worker already.
    StoreAccessError: A bucket cannot be read or written.
    RecallError: With `once` or in the mode `every`, the recall of an index is
      below what its settings want; otherwise the checkpoint is skipped.
  """
  config = dataclasses.replace(sidecar, once=sidecar.once or once)
  agreement = Agreement("builder")
  agreement.require_same(
    {"GenerationConfig": generation, "SidecarConfig": config}
  )
  directory = _generations_dir(model_dir, generations_dir)
  number = _number(worker)
  require_readable(model_dir, corpus_dir)
  require_writable(directory)
  corpus = Corpus.open(corpus_dir)

  def make_builder(version: Corpus) -> GenerationBuilder:
    return GenerationBuilder(
      generation,
      version,
      generations_dir=directory,
      number=number,
      poll_seconds=config.poll_seconds,
    )

  with (
    stop_on_sigterm() as stop,
    contextlib.closing(CheckpointStore(model_dir)) as checkpoints,
    sole_process(
      directory / layout.WORKERS,
      f"worker-{number.index}",
      advice="stop it, or give each worker a number of its own: --worker=0/2 "
      "and --worker=1/2",
    ) as role,
  ):
    stop_for_all = agreement.stop_event(stop)
    builder = CurrentBuilder(corpus, make_builder)
    first = Sidecar(
      config,
      builder,
      checkpoints=checkpoints,
      generations_dir=directory,
      stop=stop_for_all,
      check=role.check,
    )
    if number.is_first:
      return first.run()
    Helper(
      number,
      builder,
      checkpoints=checkpoints,
      generations_dir=directory,
      is_done=lambda: config.once and first.is_up_to_date(),
      poll_seconds=config.poll_seconds,
      stop=stop_for_all,
      check=role.check,
    ).run()
    return []


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
  directory = _generations_dir(model_dir, generations_dir)
  if steps := layout.published_steps(directory):
    newest = manifests.read(layout.path_of(directory, steps[-1]))
    return indexes[newest.index_kind]
  if index_scores:
    return bm25
  return exact if retrieve_on_device else scann


def _generations_dir(
  model_dir: epath.PathLike, generations_dir: epath.PathLike | None
) -> epath.Path:
  return epath.Path(generations_dir or epath.Path(model_dir) / layout.FOLDER)


def _number(worker: str | None) -> WorkerNumber:
  """Returns this worker's number.

  Raises:
    ValueError: It is not one, or several processes were given one.
  """
  if worker is None:
    return WorkerNumber(jax.process_index(), jax.process_count())
  if jax.process_count() > 1:
    raise ValueError(
      f"worker={worker!r} for one of {jax.process_count()} processes that run "
      "together, which are the workers already; leave it out"
    )
  return WorkerNumber.parse(worker)
