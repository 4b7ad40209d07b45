"""Pre-training runs as processes: one of each kind, or several; in a bucket."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from benchmarks.runs.jobs import Job, Macro, gin_command
from benchmarks.runs.object_store import ObjectStore

_CHECKPOINTS, _GENERATIONS = "checkpoints", "generations"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A pre-training run that waits for each generation.

  Attributes:
    directory: Folder of MODEL_DIR and the logs.
    corpus_dir: Corpus that `build_corpus` wrote.
    model: Gin file of the model and its lengths.
    num_steps: Number of training steps.
    save_every_steps: Distance of checkpoints, and so of generations. It is also
      the lag with which a generation is used after its checkpoint.
    index: Macro of the index in gin/runs/build_index.gin.
    index_settings: Bindings of the index's configuration.
    environment: Environment of all processes; None passes on this process's.
    batch_size: Batch size of a step.
    num_processes: Number of processes that train, and that build, together.
    store: Store in whose bucket MODEL_DIR is; None has it on the disk.
  """

  directory: Path
  corpus_dir: epath.PathLike
  model: str
  num_steps: int
  save_every_steps: int
  index: str = "EXACT"
  index_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] | None = None
  batch_size: int = 8
  num_processes: int = 1
  store: ObjectStore | None = None

  @property
  def model_dir(self) -> epath.PathLike:
    """MODEL_DIR."""
    if self.store is not None:
      return epath.Path(self.store.path(self.prefix))
    return self.directory / "model"

  @property
  def prefix(self) -> str:
    """Name of MODEL_DIR in the bucket."""
    return f"{self.directory.name}/model"

  def trainer(self) -> Job:
    """Returns the trainer, not yet started."""
    return self._job(
      *("trainer", "train", "pretrain"),
      NUM_STEPS=self.num_steps,
      SAVE_EVERY_STEPS=self.save_every_steps,
      LAG_STEPS=self.save_every_steps,
      BATCH_SIZE=self.batch_size,
      NUM_CANDIDATES=4,
      LEARNING_RATE=1e-3,
      WARMUP_STEPS=2,
      WAIT_FOR_GENERATIONS=True,
    )

  def builder(self, name: str = "builder") -> Job:
    """Returns an index builder, not yet started."""
    return self._job(
      *(name, "build_index", "build_index"),
      INDEX=Macro(self.index),
      MODE="every",
      **{
        "sidecar.SidecarConfig.poll_seconds": 0.2,
        "sidecar.SidecarConfig.retry_seconds": 1.0,
        **self.index_settings,
      },
    )

  def _job(self, name: str, module: str, recipe: str, **bindings: Any) -> Job:
    return Job(
      name,
      gin_command(
        module,
        [f"gin/runs/{recipe}.gin", self.model],
        MODEL_DIR=self.model_dir,
        CORPUS_DIR=self.corpus_dir,
        **bindings,
      ),
      log=self.directory / f"{name}.log",
      environment=self.environment,
      num_processes=self.num_processes,
    )

  def last_checkpoint(self) -> int:
    """Returns the step of the last checkpoint, −1 before the first."""
    return max(self._complete(_CHECKPOINTS), default=-1)

  def last_generation(self) -> int:
    """Returns the step of the last generation, −1 before the first."""
    return max(self._complete(_GENERATIONS), default=-1)

  def published_objects(self) -> list[str]:
    """Returns the files of complete generations, relative to MODEL_DIR."""
    complete = self._complete(_GENERATIONS)
    return [
      f"{_GENERATIONS}/{file}"
      for file in self._files(_GENERATIONS)
      if _step(file) in complete
    ]

  def _files(self, kind: str) -> list[str]:
    """Returns the files below a folder of MODEL_DIR, relative to it."""
    if self.store is not None:
      prefix = f"{self.prefix}/{kind}/"
      return [name.removeprefix(prefix) for name in self.store.names(prefix)]
    root = Path(self.model_dir) / kind
    return [
      (Path(folder) / name).relative_to(root).as_posix()
      for folder, _, names in os.walk(root)
      for name in names
    ]

  def _complete(self, kind: str) -> set[int]:
    """Returns the steps of complete checkpoints, or of generations.

    On a disk, a checkpoint gets its name when it is complete.
    """
    files = self._files(kind)
    if kind == _GENERATIONS:
      files = [file for file in files if file.endswith("/manifest.json")]
    elif self.store is not None:
      files = [file for file in files if file.endswith("/commit_success.txt")]
    return {_step(file) for file in files} - {-1}


def _step(file: str) -> int:
  """Returns the step of a file's folder; −1 of another folder."""
  folder = file.partition("/")[0]
  return int(folder) if folder.isdecimal() else -1
