"""Building and publishing of one generation, alone or with other workers."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh
from jaxtyping import UInt64

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.corpus.store import Corpus
from realm_jax.files import remote
from realm_jax.files.disk_full import DiskFullError
from realm_jax.generations.build import refresh_plan, shared_work
from realm_jax.generations.build.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.build.base_generation import (
  BaseGeneration,
  block_keys,
  find_base_generation,
  open_base_vectors,
  previous_index,
)
from realm_jax.generations.build.partial_refresh import PartialRefresh
from realm_jax.generations.build.refresh_plan import BaseVectors, RefreshPlan
from realm_jax.generations.build.shared_work import SharedWork, WorkGoneError
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  GenerationError,
  Manifest,
)
from realm_jax.generations.store.publisher import (
  disk_full_explained,
  is_current,
  publish,
)
from realm_jax.generations.store.retention import is_removed
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning.mesh import make_mesh

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
  """Settings of the generations of a run.

  Attributes:
    retriever: Towers of the run, for any vocabulary.
    index: Settings of the index.
    embedding: Settings of embedding and of measuring recall; None takes the
      defaults.
    partial: Settings of a partial refresh; None embeds every block.
  """

  retriever: Retriever
  index: IndexConfig
  embedding: EmbeddingConfig | None = None
  partial: PartialRefresh | None = None


class GenerationBuilder:
  """Builds generations of one corpus version.

  Workers that build the same generation, on one host or on several that share
  a file system, divide its shards among them.

  Args:
    config: Settings of the generations.
    corpus: Corpus to embed.
    generations_dir: Directory of the generations.
    mesh: Mesh on which blocks are embedded; None takes this process's devices.
  """

  def __init__(
    self,
    config: GenerationConfig,
    corpus: Corpus,
    *,
    generations_dir: epath.PathLike,
    mesh: Mesh | None = None,
  ):
    self.corpus = corpus
    self._directory = epath.Path(generations_dir)
    self._artifacts = ArtifactWriter(
      corpus,
      config.retriever,
      index=config.index,
      config=config.embedding,
      mesh=mesh or make_mesh(devices=jax.local_devices()),
    )
    self._partial = config.partial
    self._keys = None if config.partial is None else block_keys(corpus)

  def restore(self, checkpoints: CheckpointStore, step: int) -> Params | None:
    """Restores the retriever of a checkpoint to the devices.

    Returns:
      The parameters, or None where the checkpoint was removed meanwhile.

    Raises:
      CheckpointError: The checkpoint is of another model or vocabulary, or
        cannot be read.
    """
    try:
      like = {"retriever": self._artifacts.abstract_params()}
      require_vocabulary(checkpoints, step, self.corpus.vocab_sha256)
      restored = checkpoints.restore(step, items=("retriever",), like=like)
      return restored["retriever"]
    except (ValueError, OSError) as error:
      if not is_removed(checkpoints, step):
        raise
      logging.warning("checkpoint %d was removed meanwhile (%s)", step, error)
      return None

  def up_to_date(self, newest_version: Sequence[int] = ()) -> set[int]:
    """Returns the steps of valid generations with these settings.

    Args:
      newest_version: Steps whose generation must be of the newest version of
        the corpus. Others may be of any version that still exists.
    """
    steps = set()
    for step in layout.published_steps(self._directory):
      path = layout.path_of(self._directory, step)
      try:
        manifest = manifests.read(path)
        manifests.verify(path, manifest, checksums=False)
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
    params: Params,
    *,
    check: Callable[[], None] = lambda: None,
    is_needed: Callable[[int], bool] = lambda step: True,
    any_version: bool = False,
  ) -> bool:
    """Builds and publishes the generation of a checkpoint.

    Args:
      step: Checkpoint step of the generation.
      params: Parameters of the retriever, on the devices.
      check: Function that is called regularly; an exception that it raises
        stops the work.
      is_needed: Function that returns whether the generation of another step
        may still be built; unfinished shards of others are removed.
      any_version: Whether a generation of an earlier corpus version, published
        by another worker, is good enough.

    Returns:
      Whether this worker published it. If not, another worker did, or removed
      the shards.

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
    base = self._find_base(step)
    is_published = False
    with contextlib.ExitStack() as stack:
      lease = Lease(self._directory)
      stack.callback(lease.release)

      def check_and_lease() -> None:
        check()
        if base is not None:
          lease.hold({base.manifest.step})

      stack.enter_context(disk_full_explained(self._directory, step))
      check_and_lease()
      work = stack.enter_context(self._join(step, params, base))
      if not remote.is_remote(self._directory):
        shared_work.remove_obsolete(
          Path(self._directory), is_needed, current=work.directory
        )
      build = _Build(
        artifacts=self._artifacts,
        directory=self._directory,
        step=step,
        params=params,
        work=work,
        base=base,
        partial=self._partial,
        keys=self._keys,
        replaces=lambda manifest: self._artifacts.replaces(
          manifest, any_version=any_version
        ),
        check=check_and_lease,
      )
      with contextlib.suppress(WorkGoneError):
        is_published = build.run()
    self._log_result(step, is_published)
    return is_published

  def _find_base(self, step: int) -> BaseGeneration | None:
    if self._partial is None:
      return None
    return find_base_generation(
      self._directory,
      step,
      corpus=self.corpus,
      model=self._artifacts.model,
      dtype=self._artifacts.layout.dtype,
    )

  @contextlib.contextmanager
  def _join(
    self, step: int, params: Params, base: BaseGeneration | None
  ) -> Iterator[SharedWork]:
    identity = self._artifacts.identity(params)
    if base is not None:
      assert self._partial is not None
      identity["earlier"] = base.checksum
      identity["partial"] = dataclasses.asdict(self._partial)
    with contextlib.ExitStack() as stack:
      parent = Path(self._directory)
      if remote.is_remote(self._directory):
        # An object store has no locks, so one worker builds in a temporary
        # directory of its own. If it is killed, the generation begins again.
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      yield stack.enter_context(
        shared_work.join(
          parent, step=step, shards=self._artifacts.layout, identity=identity
        )
      )

  def _log_result(self, step: int, is_published: bool) -> None:
    if not is_published:
      if step in layout.published_steps(self._directory):
        logging.info("generation %d was published by another worker", step)
      else:
        logging.warning("the shards of generation %d were removed", step)
      return
    manifest = manifests.read(layout.path_of(self._directory, step))
    embedded = manifest.num_blocks
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


@dataclasses.dataclass(frozen=True)
class _Build:
  """One generation that is being built.

  Attributes:
    artifacts: Writer of its files.
    directory: Directory of all generations.
    step: Checkpoint step of the generation.
    params: Parameters of the retriever, on the devices.
    work: Shards that are shared with other workers.
    base: Generation to copy vectors from; None embeds every block.
    partial: Settings of the partial refresh; None without one.
    keys: Keys of the blocks; None without a partial refresh.
    replaces: Function that decides whether a published generation of this step
      is replaced.
    check: Function that is called regularly; an exception stops the work.
  """

  artifacts: ArtifactWriter
  directory: epath.Path
  step: int
  params: Params
  work: SharedWork
  base: BaseGeneration | None
  partial: PartialRefresh | None
  keys: UInt64[np.ndarray, " N"] | None
  replaces: Callable[[Manifest], bool]
  check: Callable[[], None]

  def run(self) -> bool:
    """Embeds shards until all are there, and publishes; False if another did.

    Raises:
      WorkGoneError: Another worker removed the shards.
    """
    with contextlib.ExitStack() as stack:
      vectors = stack.enter_context(self._base_vectors())
      plan = self._plan(vectors)
      while not self._is_published():
        self.check()
        with self.work.claim_shard() as shard:
          if shard is not None:
            self._embed_shard(shard, plan, vectors)
            continue
        with self.work.claim_publication() as is_ours:
          if is_ours:
            published = self._publish(plan)
            if published is not None:
              self.work.remove()
              return published
            continue
        time.sleep(_POLL_SECONDS)
    return False

  @contextlib.contextmanager
  def _base_vectors(self) -> Iterator[BaseVectors | None]:
    """Opens the vectors of the base; None without a base that is valid."""
    with contextlib.ExitStack() as stack:
      vectors = None
      if self.base is not None:
        assert self.keys is not None
        try:
          vectors = stack.enter_context(
            open_base_vectors(
              self.base, self.keys, corpus=self.artifacts.corpus
            )
          )
        except GenerationError as error:
          logging.warning(
            "generation %d is not used as base: %s",
            self.base.manifest.step,
            error,
          )
      yield vectors

  def _embed(self, rows: np.ndarray) -> np.ndarray:
    return self.artifacts.embedder.embed(self.params, rows, check=self.check)

  def _plan(self, vectors: BaseVectors | None) -> RefreshPlan:
    """Returns the plan that the first worker makes and all follow."""
    num_blocks, dim = (
      self.artifacts.corpus.num_blocks,
      self.artifacts.layout.dim,
    )
    config = self.partial
    if self.base is None or config is None:
      return RefreshPlan.full(num_blocks, dim)

    def make(path: Path) -> None:
      if vectors is None:
        logging.info("generation %d embeds every block", self.step)
        plan = RefreshPlan.full(num_blocks, dim)
      else:
        plan = refresh_plan.make_plan(
          config,
          vectors,
          step=self.step,
          embed=self._embed,
          costs=self.artifacts.embedder.costs(),
          dim=dim,
          normalize=self.artifacts.normalize,
        )
      plan.save(path)

    plan = self.work.make_once(
      refresh_plan.FILE_NAME, make, RefreshPlan.load, check=self.check
    )
    if plan.record is not None and vectors is None:
      raise GenerationError(
        f"generation {self.base.manifest.step} was damaged while generation "
        f"{self.step} was built from it; start build_index again"
      )
    return plan

  def _is_published(self) -> bool:
    published = layout.path_of(self.directory, self.step)
    manifest = published / layout.MANIFEST
    return manifest.exists() and is_current(published, self.replaces)

  def _embed_shard(
    self, shard: int, plan: RefreshPlan, base: BaseVectors | None
  ) -> None:
    start = time.monotonic()
    vectors, steps = plan.vectors(
      self.work.layout.rows(shard),
      embed=self._embed,
      base=base,
      step=self.step,
    )
    self.work.add(shard, vectors, steps, seconds=time.monotonic() - start)

  def _publish(self, plan: RefreshPlan) -> bool | None:
    """Publishes; None where a damaged shard has to be embedded again."""

    def write(directory: Path) -> Manifest:
      return self.artifacts.write(
        directory,
        step=self.step,
        params=self.params,
        stored=self.work.link_into(directory),
        partial=plan.record,
        keys=self.keys,
        previous=previous_index(
          self.directory, self.step, kind=self.artifacts.index_kind
        ),
        check=self.check,
      )

    try:
      return publish(self.directory, self.step, write, replaces=self.replaces)
    except DamagedFileError as error:
      self.work.discard(error.path)
      return None
    except (DiskFullError, WorkGoneError):
      raise
    except Exception as error:
      self.check()  # It may have raised the error.
      # Damaged vectors raise errors of any type, or lower the recall.
      if not self.work.discard_damaged():
        raise
      logging.warning("generation %d was not written: %r", self.step, error)
      return None
