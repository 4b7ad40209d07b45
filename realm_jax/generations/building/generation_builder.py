"""Building and publishing of one generation, alone or with other workers."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from absl import logging
from etils import epath

from realm_jax.checkpoints.loop_item import require_vocabulary
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.corpus.store import Corpus
from realm_jax.files import remote
from realm_jax.generations.building import shared_work
from realm_jax.generations.building.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.building.base_generation import (
  find_base_generation,
  open_base_vectors,
)
from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.generations.building.worker import Worker
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.generations.store.publisher import disk_full_explained
from realm_jax.generations.store.retention import is_removed
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning.mesh import make_mesh


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
  """Settings of the generations of a run.

  The `retriever` may be for another vocabulary. Without settings of `embedding`
  the defaults are taken; without a `partial` refresh every block is embedded.
  """

  retriever: Retriever
  index: IndexConfig
  embedding: EmbeddingConfig | None = None
  partial: PartialRefresh | None = None


class GenerationBuilder:
  """Builds generations of one corpus version.

  Workers that build the same generation, on one host or on several that share
  a file system, divide its shards among them.
  """

  def __init__(
    self,
    config: GenerationConfig,
    corpus: Corpus,
    *,
    generations_dir: epath.PathLike,
  ):
    self.corpus = corpus
    self._directory = epath.Path(generations_dir)
    self._artifacts = ArtifactWriter(
      corpus,
      config.retriever,
      index=config.index,
      config=config.embedding,
      partial=config.partial,
      mesh=make_mesh(devices=jax.local_devices()),
    )

  def restore(self, checkpoints: CheckpointStore, step: int) -> Params | None:
    """Restores a retriever to the devices; None if it was removed meanwhile.

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

    Those of the steps in `newest_version` must be of the newest version of the
    corpus. Others may be of any version that still exists.
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
      step: Step of the checkpoint.
      params: Parameters of the retriever, on the devices.
      check: Function that is called regularly; an exception stops the work.
      is_needed: Function that returns whether another step's generation may
        still be built; the unfinished shards of others are removed.
      any_version: Whether one of an earlier corpus version will do.

    Returns:
      Whether this worker, and no other, published it.

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
    if self._artifacts.partial is not None:
      base = find_base_generation(
        self._directory,
        step,
        corpus=self.corpus,
        model=self._artifacts.model,
        dtype=self._artifacts.layout.dtype,
      )
    with contextlib.ExitStack() as stack:
      lease = Lease(self._directory)
      stack.callback(lease.release)

      def check_and_lease() -> None:
        check()
        if base is not None:
          lease.hold({base.step})

      stack.enter_context(disk_full_explained(self._directory, step))
      check_and_lease()
      vectors = None
      if base is not None:
        try:
          vectors = stack.enter_context(
            open_base_vectors(
              self._directory, base, self._artifacts.keys, corpus=self.corpus
            )
          )
        except GenerationError as error:
          logging.warning("generation %d embeds every block: %s", step, error)
          base = None
      parent = Path(self._directory)
      if remote.is_remote(self._directory):
        # An object store has no locks, so one worker builds in a temporary
        # directory of its own. If it is killed, the generation begins again.
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      work = stack.enter_context(
        shared_work.join(
          parent,
          step=step,
          shards=self._artifacts.layout,
          identity=self._artifacts.identity(params, base),
        )
      )
      work.remove_obsolete(is_needed)
      worker = Worker(
        artifacts=self._artifacts,
        directory=self._directory,
        step=step,
        params=params,
        work=work,
        base=vectors,
        replaces=lambda manifest: self._artifacts.replaces(
          manifest, any_version=any_version
        ),
        check=check_and_lease,
      )
      try:
        is_published = worker.run()
      except FileNotFoundError:
        if not work.is_removed():
          raise
        is_published = False
    self._log_result(step, is_published)
    return is_published

  def _log_result(self, step: int, is_published: bool) -> None:
    if not is_published:
      if step in layout.published_steps(self._directory):
        logging.info("generation %d was published by another worker", step)
      else:
        logging.warning("the shards of generation %d were removed", step)
      return
    manifest = manifests.read(layout.path_of(self._directory, step))
    partial = manifest.partial
    logging.info(
      "published generation %d: %d blocks, %d embedded in %.1f s, %s built in "
      "%.1f s, recall %s",
      step,
      manifest.num_blocks,
      partial.embedded_blocks if partial else manifest.num_blocks,
      manifest.embed_seconds,
      manifest.index_kind,
      manifest.build_seconds,
      ", ".join(f"@{k} {r:.3f}" for k, r in manifest.recall.items()) or "–",
    )
