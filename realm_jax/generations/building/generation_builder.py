"""Building and publishing of one generation, alone or with other workers."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
from absl import logging
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.store import Corpus
from realm_jax.generations.building import assignment
from realm_jax.generations.building.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.building.assignment import Assignment
from realm_jax.generations.building.base_generation import (
  checkpoint_vectors,
  find_base_generation,
  open_base_vectors,
)
from realm_jax.generations.building.draft import Draft, identity_of
from realm_jax.generations.building.partial_refresh import (
  KnownVectors,
  PartialRefresh,
)
from realm_jax.generations.building.worker import (
  Worker,
  WorkerNumber,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease
from realm_jax.generations.store.manifest import GenerationError, Manifest
from realm_jax.generations.store.published import PublishedGenerations
from realm_jax.generations.store.publisher import (
  disk_full_explained,
  remove_drafts,
)
from realm_jax.generations.store.retention import is_removed
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning.mesh import make_mesh

_ALONE = WorkerNumber()


class OtherWorkError(ValueError):
  """The first worker builds with other settings than this one."""


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
  """Settings of the generations of a run.

  The `retriever` may be for another vocabulary. Without a `partial` refresh
  every block is embedded.
  """

  retriever: Retriever
  index: IndexConfig
  embedding: EmbeddingConfig = dataclasses.field(
    default_factory=EmbeddingConfig
  )
  partial: PartialRefresh | None = None


class RestoredRetriever(NamedTuple):
  """A retriever's parameters, on the devices.

  Attributes:
    vectors: Vectors of all blocks, of a run that keeps its own index.
  """

  params: Params
  vectors: KnownVectors | None = None


class GenerationBuilder:
  """Builds generations of one corpus version, or helps to.

  The workers of a generation, on one host or several, each embed the shards of
  their number. They share the directory of the generations and nothing else.
  """

  def __init__(
    self,
    config: GenerationConfig,
    corpus: Corpus,
    *,
    generations_dir: epath.PathLike,
    number: WorkerNumber = _ALONE,
    poll_seconds: float = 1.0,
  ):
    self.corpus = corpus
    self._directory = epath.Path(generations_dir)
    self._published = PublishedGenerations(generations_dir)
    self._number = number
    self._poll_seconds = poll_seconds
    self._artifacts = ArtifactWriter(
      corpus,
      config.retriever,
      index=config.index,
      config=config.embedding,
      partial=config.partial,
      mesh=make_mesh(devices=jax.local_devices()),
    )

  def restore(
    self, checkpoints: CheckpointStore, step: int
  ) -> RestoredRetriever | None:
    """Restores a retriever to the devices; None if it was removed meanwhile.

    Raises:
      CheckpointError: The checkpoint is of another model or vocabulary, or
        cannot be read.
    """
    try:
      like = {"retriever": self._artifacts.abstract_params()}
      checkpoints.require_vocabulary(step, self.corpus.vocab_sha256)
      restored = checkpoints.restore(step, items=("retriever",), like=like)
      vectors = checkpoint_vectors(checkpoints, step, self.corpus)
      return RestoredRetriever(restored["retriever"], vectors)
    except (ValueError, OSError) as error:
      if not is_removed(checkpoints, step):
        raise
      logging.warning("checkpoint %d was removed meanwhile (%s)", step, error)
      return None

  def up_to_date(self, newest_version: Sequence[int] = ()) -> set[int]:
    """Returns the steps of valid generations with these settings.

    Those of the steps in `newest_version` must be of the newest version of the
    corpus. Others may be of any version that still exists.
    """
    steps = set()
    for step, version in self._published.versions().items():
      try:
        manifest = self._published.manifest(step, version)
      except GenerationError:
        continue
      if not self._artifacts.replaces(
        manifest, any_version=step not in newest_version
      ):
        steps.add(step)
    return steps

  def build(
    self,
    step: int,
    retriever: RestoredRetriever,
    *,
    check: Callable[[], None] = lambda: None,
    is_needed: Callable[[int], bool] = lambda step: True,
    is_possible: Callable[[], bool] = lambda: True,
  ) -> bool:
    """Builds and publishes the generation of a checkpoint, as first worker.

    One that is published for this step is replaced.

    Args:
      step: Step of the checkpoint.
      retriever: What was restored from the checkpoint.
      check: Function that is called regularly; an exception stops the work.
      is_needed: Function that returns whether another step's generation may
        still be built; the unfinished shards of others are removed.
      is_possible: Function that returns whether the other workers can still
        restore the checkpoint.

    Returns:
      Whether it was published; False where it is not possible any more.

    Raises:
      DiskFullError: The disk is full; nothing published has changed.
      GenerationError: A vector is not finite.
      RecallError: The recall of the index is below what its settings want.
    """
    logging.info(
      "building generation %d on version %d of the corpus",
      step,
      self.corpus.version,
    )
    base = None
    if retriever.vectors is None:
      base = self._find_base(step)
    with self._opened(step, retriever, check, base) as worker:
      own = worker.draft.folder.name
      remove_drafts(
        self._directory,
        lambda other, name: name == own if other == step else is_needed(other),
      )
      with self._assigned(worker):
        is_published = worker.publish(is_possible)
    if is_published:
      self._log_published(step, was_embedded=retriever.vectors is None)
    else:
      logging.warning(
        "generation %d was given up, for its checkpoint is gone and not all of "
        "its shards are there",
        step,
      )
    return is_published

  def help(
    self,
    assigned: Assignment,
    retriever: RestoredRetriever,
    *,
    is_assigned: Callable[[], bool],
    check: Callable[[], None] = lambda: None,
  ) -> None:
    """Embeds the shards of this worker, which is not the first one.

    Args:
      assigned: What the first worker builds.
      retriever: What was restored from the checkpoint.
      is_assigned: Function that returns whether it still builds that.
      check: Function that is called regularly; an exception stops the work.

    Raises:
      OtherWorkError: This worker would embed other vectors than the first.
      GenerationError: A vector is not finite.
    """
    base = None
    if assigned.base is not None:
      base = manifests.read(layout.path_of(self._directory, assigned.base))
    with self._opened(assigned.step, retriever, check, base) as worker:
      if worker.draft.folder.name != assigned.identity:
        raise OtherWorkError(
          f"worker {self._number} would embed other vectors for generation "
          f"{assigned.step} than the first worker; start all workers with the "
          "same gin files and bindings, on the same corpus"
        )
      worker.help(is_assigned)

  def _find_base(self, step: int) -> Manifest | None:
    if self._artifacts.partial is None:
      return None
    return find_base_generation(
      self._directory,
      step,
      corpus=self.corpus,
      model=self._artifacts.model,
      dtype=self._artifacts.layout.dtype,
    )

  @contextlib.contextmanager
  def _opened(
    self,
    step: int,
    retriever: RestoredRetriever,
    check: Callable[[], None],
    base: Manifest | None,
  ) -> Iterator[Worker]:
    """Yields the worker of a generation, with the base's vectors at hand."""
    with contextlib.ExitStack() as stack:
      lease = Lease(self._directory)
      stack.callback(lease.release)

      def check_and_lease() -> None:
        check()
        if base is not None:
          lease.hold({base.step})

      stack.enter_context(disk_full_explained(self._directory, step))
      check_and_lease()
      vectors = retriever.vectors
      if base is not None:
        try:
          vectors = open_base_vectors(
            self._directory, base, self._artifacts.keys, corpus=self.corpus
          )
        except GenerationError as error:
          if not self._number.is_first:
            raise
          logging.warning("generation %d embeds every block: %s", step, error)
          base = None
      identity = self._artifacts.identity(retriever.params, base)
      if retriever.vectors is not None:
        identity["vectors"] = "of the checkpoint"
      yield Worker(
        artifacts=self._artifacts,
        directory=self._directory,
        step=step,
        params=retriever.params,
        draft=Draft(
          self._directory,
          step,
          self._artifacts.layout,
          identity_of(identity, self._artifacts.layout),
        ),
        base=vectors,
        copies_all=retriever.vectors is not None,
        number=self._number,
        check=check_and_lease,
        poll_seconds=self._poll_seconds,
      )

  @contextlib.contextmanager
  def _assigned(self, worker: Worker) -> Iterator[None]:
    """Assigns a generation to the other workers, if there are any."""
    if self._number.count == 1:
      yield
      return
    # What the checkpoint has, the others take from there.
    base = None if worker.copies_all else worker.base
    assigned = Assignment(
      step=worker.step,
      identity=worker.draft.folder.name,
      num_workers=self._number.count,
      corpus_version=self.corpus.version,
      corpus_fingerprint=self.corpus.fingerprint,
      base=None if base is None else base.step,
    )
    assignment.write(self._directory, assigned)
    try:
      yield
    finally:
      assignment.write(self._directory, None)

  def _log_published(self, step: int, *, was_embedded: bool) -> None:
    manifest = manifests.read(layout.path_of(self._directory, step))
    embedded = manifest.num_blocks if was_embedded else 0
    if manifest.partial is not None:
      embedded = manifest.partial.embedded_blocks
    logging.info(
      "published generation %d: %d blocks, %d embedded in %.1f s, %s built in "
      "%.1f s, recall %s",
      step,
      manifest.num_blocks,
      embedded,
      manifest.embed_seconds,
      manifest.index_kind,
      manifest.build_seconds,
      ", ".join(f"@{k} {r:.3f}" for k, r in manifest.recall.items()) or "–",
    )
