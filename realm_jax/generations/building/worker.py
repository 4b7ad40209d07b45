"""The work of one process on a generation that others may build with it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import UInt64

from realm_jax.files.disk_full import DiskFullError
from realm_jax.generations.building import refresh_plan
from realm_jax.generations.building.artifacts import ArtifactWriter
from realm_jax.generations.building.base_generation import (
  BaseGeneration,
  open_base_vectors,
  previous_index,
)
from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.generations.building.refresh_plan import BaseVectors, RefreshPlan
from realm_jax.generations.building.shared_work import SharedWork, WorkGoneError
from realm_jax.generations.store import layout
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  GenerationError,
  Manifest,
)
from realm_jax.generations.store.publisher import is_current, publish
from realm_jax.models.parameters import Params

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Worker:
  """One of the processes that build a generation together.

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
