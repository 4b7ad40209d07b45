"""Pre-training runs as processes: one of each kind, or several; in a bucket."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from benchmarks.runs.job_group import JobGroup
from benchmarks.runs.jobs import (
  HEARTBEAT_TIMEOUT_SECONDS,
  Job,
  Macro,
  free_port,
  gin_command,
)
from benchmarks.runs.object_store import ObjectStore

# The last file of a checkpoint or generation, without which it is unfinished.
_LAST_FILES = {
  "checkpoints": "commit_success.txt",
  "generations": "manifest.json",
}


@dataclasses.dataclass(frozen=True)
class Run:
  """A pre-training run that waits for each generation.

  Attributes:
    directory: Folder of MODEL_DIR and the logs.
    corpus_dir: Corpus that `build_corpus` wrote.
    model: Gin file of the model and its lengths.
    num_steps: Number of training steps.
    save_every_steps: Distance of checkpoints, and so of generations. It is also
      the lag with which a generation is used after its checkpoint.
    batch_size: Batch size of a step.
    index: Macro of the index in gin/runs/build_index.gin.
    index_settings: Bindings of the index's configuration.
    environment: Environment of all processes; None passes on this process's.
  """

  directory: Path
  corpus_dir: epath.PathLike
  model: str
  num_steps: int
  save_every_steps: int
  batch_size: int = 8
  index: str = "EXACT"
  index_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] | None = None

  @property
  def model_dir(self) -> epath.PathLike:
    return self._folder

  @property
  def _folder(self) -> Path:
    return self.directory / "model"

  def trainer(self) -> Job | JobGroup:
    """Returns the trainer, not yet started."""
    return self._trainer("trainer")

  def builders(self) -> dict[str, Job | JobGroup]:
    """Returns the index builders by name, not yet started."""
    return {"builder": self.builder("builder")}

  def builder(self, name: str = "builder", *flags: str) -> Job:
    """Returns an index builder, not yet started."""
    return self._job(
      name,
      "build_index",
      "build_index",
      *flags,
      INDEX=Macro(self.index),
      MODE="every",
      **{
        "sidecar.SidecarConfig.poll_seconds": 0.2,
        "sidecar.SidecarConfig.retry_seconds": 1.0,
        **self.index_settings,
      },
    )

  def _trainer(self, name: str, *flags: str) -> Job:
    return self._job(
      name,
      "train",
      "pretrain",
      *flags,
      NUM_STEPS=self.num_steps,
      SAVE_EVERY_STEPS=self.save_every_steps,
      LAG_STEPS=self.save_every_steps,
      BATCH_SIZE=self.batch_size,
      NUM_CANDIDATES=4,
      LEARNING_RATE=1e-3,
      WARMUP_STEPS=2,
      WAIT_FOR_GENERATIONS=True,
    )

  def _job(
    self, name: str, module: str, recipe: str, *flags: str, **bindings: Any
  ) -> Job:
    return Job(
      name,
      gin_command(
        module,
        [f"gin/runs/{recipe}.gin", self.model],
        *flags,
        MODEL_DIR=self.model_dir,
        CORPUS_DIR=self.corpus_dir,
        **bindings,
      ),
      log=self.directory / f"{name}.log",
      environment=self.environment,
    )

  def last_checkpoint(self) -> int:
    """Returns the step of the last checkpoint, −1 before the first."""
    return max(_steps(self._folder / "checkpoints"), default=-1)

  def last_generation(self) -> int:
    """Returns the step of the last generation, −1 before the first."""
    return max(_steps(self._folder / "generations"), default=-1)

  def half_written(self) -> list[str]:
    """Returns the folders of unfinished checkpoints and generations."""
    unfinished = [
      path
      for path in (self._folder / "checkpoints").glob("*")
      if "checkpoint-tmp" in path.name
    ]
    unfinished += [
      path
      for path in (self._folder / "generations").glob("[0-9]*")
      if not (path / "manifest.json").exists()
    ]
    return sorted(path.name for path in unfinished)


def _steps(folder: Path) -> list[int]:
  try:
    return [int(name) for name in os.listdir(folder) if name.isdecimal()]
  except FileNotFoundError:
    return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiProcessRun(Run):
  """A run whose trainer and whose builder have several processes each.

  Attributes:
    num_processes: Number of processes that train, and that build, together.
  """

  num_processes: int = 2

  def trainer(self) -> JobGroup:
    """Returns the processes of the trainer, not yet started."""
    return self._group("trainer", self._trainer)

  def builders(self) -> dict[str, Job | JobGroup]:
    """Returns the processes of the builder, not yet started."""
    return {"builder": self._group("builder", self.builder)}

  def _group(self, name: str, make_job: Callable[..., Job]) -> JobGroup:
    def make_jobs() -> list[Job]:
      port = free_port()
      return [
        make_job(
          f"{name} {i}",
          f"--coordinator_address=localhost:{port}",
          f"--num_processes={self.num_processes}",
          f"--process_id={i}",
          f"--heartbeat_timeout_seconds={HEARTBEAT_TIMEOUT_SECONDS}",
        )
        for i in range(self.num_processes)
      ]

    return JobGroup(name, make_jobs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketRun(MultiProcessRun):
  """A run that has its MODEL_DIR in a bucket.

  Attributes:
    store: Store of the bucket.
  """

  store: ObjectStore

  @property
  def model_dir(self) -> epath.Path:
    return epath.Path(self.store.path(self._prefix))

  @property
  def _prefix(self) -> str:
    return f"{self.directory.name}/model"

  def last_checkpoint(self) -> int:
    return max(self._steps("checkpoints")[0], default=-1)

  def last_generation(self) -> int:
    return max(self._steps("generations")[0], default=-1)

  def half_written(self) -> list[str]:
    return [
      f"{folder}/{step}"
      for folder in _LAST_FILES
      for step in sorted(self._steps(folder)[1])
    ]

  def published_objects(self) -> list[str]:
    """Returns the names of the objects of published generations."""
    published = self._steps("generations")[0]
    return [
      name
      for name, step in self._objects("generations").items()
      if step in published
    ]

  def _steps(self, folder: str) -> tuple[set[int], set[int]]:
    """Returns the steps that are complete, and those that are not."""
    found = self._objects(folder)
    last = f"/{_LAST_FILES[folder]}"
    complete = {step for name, step in found.items() if name.endswith(last)}
    return complete, set(found.values()) - complete

  def _objects(self, folder: str) -> dict[str, int]:
    """Returns the step of each object that belongs to one."""
    prefix = f"{self._prefix}/{folder}/"
    found = {}
    for name in self.store.names(prefix):
      step = name.removeprefix(prefix).partition("/")[0]
      if step.isdecimal():
        found[name] = int(step)
    return found
