"""A trainer and its index builder as processes that can be killed."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT_DIR = Path(__file__).resolve().parent.parent
_POLL_SECONDS = 0.02
_STOP_SECONDS = 120.0
_OUTPUT_SECONDS = 10.0


_START = "--- start"


class JobError(ValueError):
  """A job that ended, or went on, when it should not have."""


class Macro(str):
  """The name of a gin macro, as a binding's value."""

  def __repr__(self) -> str:
    return f"%{self}"


def gin_command(
  module: str, gin_files: Sequence[str], *flags: str, **bindings: Any
) -> list[str]:
  """`python -m realm_jax.MODULE` with gin files and bindings."""
  return [
    *(sys.executable, "-m", f"realm_jax.{module}", *flags),
    *(f"--gin_file={file}" for file in gin_files),
    *(f"--gin.{name}={as_gin(value)}" for name, value in bindings.items()),
  ]


def as_gin(value: Any) -> str:
  """A value as gin reads it."""
  return repr(str(value) if isinstance(value, Path) else value)


class Job:
  """One command as a process, started as often as needed; its log is kept.

  Args:
    name: for messages.
    command: what to run.
    log: the file that its output is added to.
    environment: of the process; None is this one's.
  """

  def __init__(
    self,
    name: str,
    command: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
  ):
    self.name = name
    self.log = log
    self.starts = 0
    self.started_at = 0.0
    self.command = command
    self._environment = environment
    self._process: subprocess.Popen[bytes] | None = None
    self._output: subprocess.Popen[bytes] | None = None

  def start(self) -> None:
    """Starts it, for the first time or again."""
    self.log.parent.mkdir(parents=True, exist_ok=True)
    with self.log.open("a") as log:
      log.write(f"{_START} {self.starts}\n")
      log.flush()
      # What limits the sizes of the job's files does not limit its log.
      self._output = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=log
      )
    self._process = subprocess.Popen(
      self.command,
      cwd=PROJECT_DIR,
      env=None if self._environment is None else dict(self._environment),
      stdout=self._output.stdin,
      stderr=subprocess.STDOUT,
    )
    assert self._output.stdin is not None
    self._output.stdin.close()
    self.starts += 1
    self.started_at = time.monotonic()

  @property
  def pid(self) -> int:
    """Of its process."""
    return self._running().pid

  def exit_code(self) -> int | None:
    """What it ended with; None while it runs."""
    return self._running().poll()

  def ended(self) -> bool:
    """Whether it ended well by itself.

    Raises:
      JobError: it failed.
    """
    code = self._running().poll()
    if code:
      raise JobError(f"the {self.name} ended with {code}:\n{self.tail()}")
    return code == 0

  def kill(self) -> None:
    """kill -9, which no process can prepare for."""
    self._running().kill()
    self.close()

  def close(self) -> None:
    """Waits for its end, and for the last of its output."""
    self._running().wait()
    self._close()

  def terminate(self) -> int:
    """SIGTERM; returns the exit status."""
    self._running().send_signal(signal.SIGTERM)
    try:
      code = self._running().wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self.kill()
      raise JobError(
        f"the {self.name} did not stop within {_STOP_SECONDS:.0f} s of "
        f"SIGTERM:\n{self.tail()}"
      ) from None
    self._close()
    return code

  def stop(self) -> None:
    """Kills it if it still runs."""
    if self._process is not None:
      self.kill()

  def tail(self, characters: int = 2000) -> str:
    """The end of its log."""
    return self.log.read_text(errors="replace")[-characters:]

  def last_output(self) -> str:
    """Its log since it was started last."""
    return self.log.read_text(errors="replace").rpartition(_START)[2]

  def _running(self) -> subprocess.Popen[bytes]:
    if self._process is None:
      raise JobError(f"the {self.name} was not started")
    return self._process

  def _close(self) -> None:
    self._process = None
    if self._output is not None:
      # Its own children may have the other end for a moment longer.
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._output.wait(_OUTPUT_SECONDS)


@dataclasses.dataclass(frozen=True)
class Run:
  """A pre-training run that waits for each generation.

  Attributes:
    directory: of MODEL_DIR and the logs.
    corpus_dir: what `build_corpus` wrote.
    model: a gin file with the model and its lengths.
    num_steps: of the run.
    save_every_steps: the distance of checkpoints, and so of generations; a
      generation is used from so many steps after its checkpoint.
    batch_size: of a step.
    index: the name of the index, as gin/runs/build_index.gin has it.
    index_settings: bindings of its configuration.
    environment: of both processes; None is this one's.
  """

  directory: Path
  corpus_dir: Path
  model: str
  num_steps: int
  save_every_steps: int
  batch_size: int = 8
  index: str = "EXACT"
  index_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  environment: Mapping[str, str] | None = None

  @property
  def model_dir(self) -> Path:
    return self.directory / "model"

  def trainer(self) -> Job:
    """The trainer, not yet started."""
    return self._job(
      "trainer",
      "train",
      "pretrain",
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
    """An index builder, not yet started."""
    return self._job(
      name,
      "build_index",
      "build_index",
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
    )

  def last_checkpoint(self) -> int:
    """The last committed step, −1 before the first."""
    return max(_steps(self.model_dir / "checkpoints"), default=-1)

  def last_generation(self) -> int:
    """The last published generation, −1 before the first."""
    return max(_steps(self.model_dir / "generations"), default=-1)

  def half_written(self) -> list[str]:
    """What lies there of a checkpoint or generation that is being written."""
    return sorted(
      path.name
      for folder in ("checkpoints", "generations")
      for path in (self.model_dir / folder).glob("*")
      if path.name.startswith(".tmp-") or "checkpoint-tmp" in path.name
    )


def _steps(folder: Path) -> list[int]:
  try:
    return [int(name) for name in os.listdir(folder) if name.isdecimal()]
  except FileNotFoundError:
    return []


def wait_until(
  condition: Callable[[], bool],
  *,
  what: str,
  jobs: tuple[Job, ...] = (),
  timeout_seconds: float = 600.0,
) -> None:
  """Waits, and fails as soon as a job does.

  Raises:
    JobError: a job failed, or the time is up.
  """
  deadline = time.monotonic() + timeout_seconds
  while not condition():
    for job in jobs:
      job.ended()
    if time.monotonic() > deadline:
      logs = "\n".join(f"{job.name}:\n{job.tail()}" for job in jobs)
      raise JobError(f"no {what} within {timeout_seconds:.0f} s\n{logs}")
    time.sleep(_POLL_SECONDS)
