"""The work of one process on a generation that others may build with it."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import logging
from etils import epath

from realm_jax.generations.building.artifacts import ArtifactWriter
from realm_jax.generations.building.base_generation import previous_index
from realm_jax.generations.building.draft import Draft
from realm_jax.generations.building.partial_refresh import (
  KnownVectors,
  RefreshPlan,
  make_plan,
)
from realm_jax.generations.store.manifest import DamagedFileError
from realm_jax.generations.store.publisher import commit
from realm_jax.models.parameters import Params

_REMINDER_SECONDS = 60.0


class PreemptedError(Exception):
  """SIGTERM came during a build."""


@dataclasses.dataclass(frozen=True)
class WorkerNumber:
  """Which of how many workers a process is; shard i is of worker i mod count.

  The first worker chooses what is built, builds the index and publishes.
  """

  index: int = 0
  count: int = 1

  def __post_init__(self) -> None:
    if not 0 <= self.index < self.count:
      raise ValueError(
        f"worker {self.index} of {self.count}; want a number from 0 to "
        f"{max(0, self.count - 1)}"
      )

  @classmethod
  def parse(cls, text: str) -> "WorkerNumber":
    """Reads `i/n`, such as 0/4 for the first of four workers.

    Raises:
      ValueError: It has another form, or i is not in 0 … n − 1.
    """
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
      raise ValueError(
        f"{text!r} is no worker's number; write 0/4 for the first of 4 workers"
      )
    return cls(int(index), int(count))

  @property
  def is_first(self) -> bool:
    """Whether this worker chooses and publishes."""
    return self.index == 0

  def of_shard(self, shard: int) -> int:
    """Returns the index of the worker that embeds a shard."""
    return shard % self.count

  def __str__(self) -> str:
    return f"{self.index}/{self.count}"


@dataclasses.dataclass(frozen=True)
class Worker:
  """One of the processes that build a generation together.

  Without a `base` it embeds every block. The function `check` is called
  regularly; an exception stops the work.

  Attributes:
    base: Vectors that may be copied.
    copies_all: Whether every vector is, for the checkpoint has them itself.
    poll_seconds: Time between two looks at what the other workers have written.
  """

  artifacts: ArtifactWriter
  directory: epath.Path
  step: int
  params: Params
  draft: Draft
  base: KnownVectors | None
  number: WorkerNumber
  check: Callable[[], None]
  copies_all: bool = False
  poll_seconds: float = 1.0

  def publish(self, is_possible: Callable[[], bool] = lambda: True) -> bool:
    """Embeds this worker's shards, waits for all, and publishes them.

    The function `is_possible` tells whether the other workers can still embed
    their shards. If they cannot, the result is False.
    """
    plan = self._plan()
    remind_at = time.monotonic() + _REMINDER_SECONDS
    while True:
      missing = list(self._embed_own(plan))
      if not missing:
        try:
          self._publish(plan)
          return True
        except DamagedFileError as error:
          logging.warning("%s", error)
          continue
      if time.monotonic() > remind_at:
        remind_at = time.monotonic() + _REMINDER_SECONDS
        waiting_for = sorted({self.number.of_shard(i) for i in missing})
        logging.info(
          "generation %d waits for %d shards of workers %s",
          self.step,
          len(missing),
          waiting_for,
        )
        if not is_possible():
          return False
      self.check()
      time.sleep(self.poll_seconds)

  def help(self, is_assigned: Callable[[], bool]) -> None:
    """Embeds this worker's shards for as long as the generation is assigned."""
    plan = self._plan()
    while is_assigned():
      # The first worker may find one damaged, and drop it.
      for _ in self._embed_own(plan):
        pass
      self.check()
      time.sleep(self.poll_seconds)

  def _plan(self) -> RefreshPlan:
    """Returns the plan, which is the same for all workers."""
    artifacts, base, config = self.artifacts, self.base, self.artifacts.partial
    if base is not None and self.copies_all:
      return RefreshPlan(np.zeros(len(base.rows), bool), base)
    if base is None or config is None:
      return RefreshPlan.full(artifacts.corpus.num_blocks)
    costs = artifacts.embedder.costs()
    return make_plan(config, base, step=self.step, costs=costs)

  def _embed(self, rows: np.ndarray) -> np.ndarray:
    return self.artifacts.embedder.embed(self.params, rows, check=self.check)

  def _embed_own(self, plan: RefreshPlan) -> Iterator[int]:
    """Embeds what is missing of this worker's; yields what is of others."""
    missing = self.draft.missing()
    for shard in missing:
      if self.number.of_shard(shard) != self.number.index:
        continue
      self.check()
      start = time.monotonic()
      vectors, steps = plan.vectors(
        self.draft.layout.rows(shard), embed=self._embed, step=self.step
      )
      seconds = time.monotonic() - start
      self.draft.add(shard, vectors, steps, seconds=seconds)
    yield from (
      shard
      for shard in missing
      if self.number.of_shard(shard) != self.number.index
    )

  def _publish(self, plan: RefreshPlan) -> None:
    """Builds the index over all shards, and publishes.

    Raises:
      DamagedFileError: A shard has to be embedded again.
    """
    # The files of the earlier index stay as long as this variable.
    earlier = previous_index(
      self.directory, self.step, kind=self.artifacts.index.kind
    )
    with self.draft.local() as directory:
      manifest = self.artifacts.write(
        directory,
        step=self.step,
        params=self.params,
        stored=self.draft.stored(),
        partial=plan.record,
        previous=None if earlier is None else earlier[1],
        check=self.check,
      )
      files = self.draft.files(directory)
    commit(
      self.directory,
      dataclasses.replace(manifest, files=files, folder=self.draft.folder.name),
    )
