"""A pre-training run as two processes, a trainer and its index builder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from harness.jobs import Job, Macro, gin_command
from harness.object_store import ObjectStore
from realm_jax.snapshots.store import SnapshotStore, directory_of
from realm_jax.storage.paths import list_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A pre-training run that waits for each snapshot.

  Attributes:
    directory: Folder of MODEL_DIR and the logs.
    corpus_dir: Corpus that `build_corpus` wrote.
    model: Gin file of the model and its lengths.
    num_steps: Number of training steps.
    save_every_steps: Number of steps between checkpoints, and so between
      snapshots. It is also the lag between a checkpoint and its snapshot's use.
    index: Macro of the index in gin/runs/build_index.gin.
    index_settings: Bindings of the index's configuration.
    environment: Environment of all processes; None inherits this process's.
    store: Object store with MODEL_DIR in its bucket; None uses the disk.
  """

  directory: Path
  corpus_dir: epath.PathLike
  model: str
  num_steps: int
  save_every_steps: int
  index: str = "EXACT"
  index_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] | None = None
  store: ObjectStore | None = None

  @property
  def model_dir(self) -> epath.PathLike:
    """MODEL_DIR."""
    if self.store is not None:
      return epath.Path(self.store.path(f"{self.directory.name}/model"))
    return self.directory / "model"

  def trainer(self) -> Job:
    """Returns the trainer, not yet started."""
    settings = {
      "NUM_STEPS": self.num_steps,
      "SAVE_EVERY_STEPS": self.save_every_steps,
      "LAG_STEPS": self.save_every_steps,
      "BATCH_SIZE": 8,
      "LEARNING_RATE": 1e-3,
      "WARMUP_STEPS": 2,
      "WAIT_FOR_SNAPSHOTS": True,
      "NUM_CANDIDATES": 4,
    }
    return self._job("trainer", "train", "pretrain", **settings)

  def builder(self) -> Job:
    """Returns the index builder, not yet started."""
    return self._job(
      *("builder", "build_index", "build_index"),
      INDEX=Macro(self.index),
      MODE="every",
      **{
        "index_builder.IndexBuilderConfig.poll_seconds": 0.2,
        "index_builder.IndexBuilderConfig.retry_seconds": 1.0,
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
    )

  def last_checkpoint(self) -> int:
    """Returns the step of the last checkpoint, or −1 if there is none."""
    folder = epath.Path(self.model_dir) / "checkpoints"
    steps = {int(name) for name in list_names(folder) if name.isdecimal()}
    if self.store is not None:
      # On a disk, a checkpoint is renamed when it is complete.
      complete = "commit_success.txt"
      steps = {s for s in steps if (folder / str(s) / complete).exists()}
    return max(steps, default=-1)

  def last_snapshot(self) -> int:
    """Returns the step of the last snapshot, or −1 if there is none."""
    store = SnapshotStore(directory_of(self.model_dir))
    return max(store.steps(), default=-1)
