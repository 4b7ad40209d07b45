"""The work of one process on a generation that others may build with it."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath

from realm_jax.files.disk_full import DiskFullError
from realm_jax.generations.building.artifacts import ArtifactWriter
from realm_jax.generations.building.base_generation import previous_index
from realm_jax.generations.building.refresh_plan import (
  BaseVectors,
  RefreshPlan,
  make_plan,
)
from realm_jax.generations.building.shared_work import SharedWork
from realm_jax.generations.store import layout
from realm_jax.generations.store.manifest import DamagedFileError, Manifest
from realm_jax.generations.store.publisher import is_current, publish
from realm_jax.models.parameters import Params

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Worker:
  """One of the processes that build a generation together.

  Without a `base` it embeds every block. It replaces a published generation of
  this step if `replaces` says so. The function `check` is called regularly; an
  exception stops the work.
  """

  artifacts: ArtifactWriter
  directory: epath.Path
  step: int
  params: Params
  work: SharedWork
  base: BaseVectors | None
  replaces: Callable[[Manifest], bool]
  check: Callable[[], None]

  def run(self) -> bool:
    """Embeds shards until all are there, and publishes; False if another did.

    Raises:
      FileNotFoundError: Another worker removed the shards.
    """
    plan = self._plan()
    published = layout.path_of(self.directory, self.step)
    while not is_current(published, self.replaces):
      self.check()
      with self.work.claim_shard() as shard:
        if shard is not None:
          self._embed_shard(shard, plan)
          continue
      with self.work.claim_publication() as is_ours:
        if is_ours:
          is_published = self._publish(plan)
          if is_published is not None:
            self.work.remove()
            return is_published
          continue
      time.sleep(_POLL_SECONDS)
    return False

  def _plan(self) -> RefreshPlan:
    """Returns the plan, which is the same for all workers."""
    artifacts, base, config = self.artifacts, self.base, self.artifacts.partial
    if base is None or config is None:
      return RefreshPlan.full(artifacts.corpus.num_blocks, artifacts.layout.dim)
    return make_plan(
      config,
      base,
      step=self.step,
      embed=self._embed_sample,
      costs=artifacts.embedder.costs(),
      dim=artifacts.layout.dim,
      normalize=artifacts.retriever.normalize,
    )

  def _embed_sample(self, rows: np.ndarray) -> np.ndarray:
    return self.work.make_once(
      "sample", lambda: self._embed(rows), check=self.check
    )

  def _embed(self, rows: np.ndarray) -> np.ndarray:
    return self.artifacts.embedder.embed(self.params, rows, check=self.check)

  def _embed_shard(self, shard: int, plan: RefreshPlan) -> None:
    start = time.monotonic()
    vectors, steps = plan.vectors(
      self.work.layout.rows(shard), embed=self._embed, step=self.step
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
        previous=previous_index(
          self.directory, self.step, kind=self.artifacts.index.kind
        ),
        check=self.check,
      )

    try:
      return publish(self.directory, self.step, write, replaces=self.replaces)
    except DiskFullError:
      raise
    except Exception as error:
      self.check()  # It may have raised the error.
      # Damaged vectors raise errors of any type, or lower the recall.
      is_damaged = self.work.discard_damaged()
      if not is_damaged and not isinstance(error, DamagedFileError):
        raise
      logging.warning("generation %d was not written: %r", self.step, error)
      return None
