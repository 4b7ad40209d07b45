"""Runs of several processes on one machine, each with devices of its own."""

import contextlib
import dataclasses
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs.jobs import Job, Macro, gin_command, wait_until

# After this many seconds without a sign of life a process is taken for dead.
HEARTBEAT_TIMEOUT_SECONDS = 10
_TIMEOUT_SECONDS = 240.0


@dataclasses.dataclass(frozen=True)
class Layout:
  """Processes, their devices, and the mesh over all of these devices.

  Attributes:
    processes: Number of processes.
    devices: Number of devices of each process.
    fsdp: Size of the mesh axis that divides parameters and batch.
    model: Size of the mesh axis that divides heads and the vocabulary.
  """

  processes: int
  devices: int
  fsdp: int = 1
  model: int = 1

  def __str__(self) -> str:
    axes = {"fsdp": self.fsdp, "model": self.model}
    above_one = [f"{name} {size}" for name, size in axes.items() if size > 1]
    return " ".join([f"{self.processes} × {self.devices}", *above_one])


@dataclasses.dataclass(frozen=True)
class GroupRun:
  """A run of one stage, whose trainer is a group of processes.

  Attributes:
    directory: Folder of MODEL_DIR and the logs.
    corpus_dir: Corpus that `build_corpus` wrote.
    recipe: Gin file under gin/runs/ of the stage, without its ending.
    model: Gin file of the model and its lengths.
    layout: Processes and devices of the trainer.
    settings: Gin bindings of the trainer.
    index: Macro of the index in gin/runs/build_index.gin.
    index_settings: Gin bindings of the index builder.
    environment: Variables that all processes are given.
    trainer_module: Module that the processes of the trainer run.
  """

  directory: Path
  corpus_dir: Path
  recipe: str
  model: str
  layout: Layout
  settings: Mapping[str, Any]
  index: str = "EXACT"
  index_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  trainer_module: str = "realm_jax.train"
  trainer_flags: Sequence[str] = ()

  @property
  def model_dir(self) -> Path:
    return self.directory / "model"

  def trainers(self) -> list[Job]:
    """Returns the processes of the trainer, not yet started."""
    count, flags = self.layout.processes, [*self.trainer_flags]
    if count > 1:
      flags += [
        f"--coordinator_address=localhost:{free_port()}",
        f"--num_processes={count}",
        f"--heartbeat_timeout_seconds={HEARTBEAT_TIMEOUT_SECONDS}",
      ]
    devices = f"--xla_force_host_platform_device_count={self.layout.devices}"
    jobs = []
    for process in range(count):
      own = [*flags, f"--process_id={process}"] if count > 1 else []
      command = self._command(
        "train",
        self.recipe,
        *own,
        FSDP=self.layout.fsdp,
        MODEL_PARALLELISM=self.layout.model,
        **self.settings,
      )
      command[command.index("realm_jax.train")] = self.trainer_module
      jobs.append(
        Job(
          f"trainer {process}",
          command,
          log=self.directory / f"trainer{process}.log",
          environment={
            **os.environ,
            **self.environment,
            "XLA_FLAGS": devices,
          },
        )
      )
    return jobs

  def builder(self, *flags: str, mode: str = "newest") -> Job:
    """Returns an index builder, not yet started."""
    return Job(
      "builder",
      self._command(
        "build_index",
        "build_index",
        *flags,
        INDEX=Macro(self.index),
        MODE=mode,
        **{"sidecar.SidecarConfig.poll_seconds": 0.2, **self.index_settings},
      ),
      log=self.directory / "builder.log",
      environment={**os.environ, **self.environment},
    )

  def _command(
    self, module: str, recipe: str, *flags: str, **bindings: Any
  ) -> list[str]:
    return gin_command(
      module,
      [f"gin/runs/{recipe}.gin", self.model],
      *flags,
      MODEL_DIR=self.model_dir,
      CORPUS_DIR=self.corpus_dir,
      **bindings,
    )

  def checkpoint_steps(self) -> list[int]:
    """Returns the steps of the checkpoints that are complete."""
    folder = self.model_dir / "checkpoints"
    if not folder.exists():
      return []
    return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())

  def copy_start_of(self, other: "GroupRun", *, step: int = 0) -> None:
    """Takes over checkpoints until a step, metrics and the generations."""
    self.model_dir.mkdir(parents=True)
    for one in other.checkpoint_steps():
      if one <= step:
        folder = Path("checkpoints") / str(one)
        shutil.copytree(other.model_dir / folder, self.model_dir / folder)
    if (other.model_dir / "generations").exists():
      shutil.copytree(
        other.model_dir / "generations", self.model_dir / "generations"
      )
    if step:
      shutil.copy(other.model_dir / "metrics.jsonl", self.model_dir)


@contextlib.contextmanager
def started(*jobs: Job) -> Iterator[None]:
  """Starts jobs, and kills those that still run when the block ends."""
  try:
    for job in jobs:
      job.start()
    yield
  finally:
    for job in jobs:
      job.stop()


def wait_for_end(group: Sequence[Job], *others: Job) -> None:
  """Waits until all processes of a group have ended with success.

  Raises:
    JobError: A process of the group, or another job, has failed.
  """
  wait_until(
    lambda: all(job.exit_code() is not None for job in group),
    what="end of the group",
    jobs=(*group, *others),
    timeout_seconds=_TIMEOUT_SECONDS,
  )
  for job in group:
    job.ended()


def free_port() -> int:
  """Returns a port of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return int(found.getsockname()[1])
