"""Commands of stages, for commands that run several: as text, as processes.

Their processes have sessions of their own, so that Ctrl-C on a terminal reaches
the command that runs them, which stops them as SIGTERM does: a trainer then
saves a checkpoint before it ends.
"""

import contextlib
import dataclasses
import json
import os
import pkgutil
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.console.sigterm import stop_on_sigterm

_POLL_SECONDS = 0.2
_TAIL_LINES = 12

# A value that a gin macro is bound to.
Value = str | int | float | bool | None

# What the entry points of stages configure. They import it late.
_FUNCTIONS = {
  "train": "realm_jax.training.config:TrainConfig",
  "evaluate": "realm_jax.evaluation.evaluate:evaluate",
  "evaluate --follow": "realm_jax.evaluation.evaluate:follow",
  "build_index": "realm_jax.generations.sidecar:build_index",
}


def function_of(module: str, flags: Sequence[str] = ()) -> Callable[..., Any]:
  """Returns what `python -m realm_jax.MODULE` with flags configures."""
  follows = " --follow" if "--follow" in flags else ""
  return pkgutil.resolve_name(_FUNCTIONS[module + follows])


@dataclasses.dataclass(frozen=True)
class StageCommand:
  """`python -m realm_jax.MODULE` with gin files and bindings.

  Directories are bindings, too, and not `--model_dir`: that would add what the
  run has recorded, so that runs of different stages would be evaluated by
  different settings.

  Attributes:
    module: Name of the entry point, such as `train`.
    gin_files: Gin files; later ones override earlier ones.
    bindings: Values by macro, which override all files.
    flags: Further flags.
  """

  module: str
  gin_files: Sequence[str]
  bindings: Mapping[str, Value]
  flags: Sequence[str] = ()

  @property
  def gin_values(self) -> dict[str, str]:
    """The bindings' values as gin reads them."""
    return {
      name: json.dumps(value) if isinstance(value, str) else repr(value)
      for name, value in self.bindings.items()
    }

  @property
  def gin_bindings(self) -> list[str]:
    """The bindings as lines of a gin file."""
    return [f"{name} = {value}" for name, value in self.gin_values.items()]

  @property
  def function(self) -> Callable[..., Any]:
    """The class or function that gin configures, for which it is imported."""
    return function_of(self.module, self.flags)

  @property
  def arguments(self) -> list[str]:
    """Arguments of the Python interpreter."""
    bindings = self.gin_values.items()
    return [
      *("-m", f"realm_jax.{self.module}", *self.flags),
      *(f"--gin_file={file}" for file in self.gin_files),
      *(f"--gin.{name}={value}" for name, value in bindings),
    ]

  @property
  def argv(self) -> list[str]:
    """Command line of a process with this interpreter."""
    return [sys.executable, *self.arguments]

  def __str__(self) -> str:
    return shlex.join(["python", *self.arguments])


class StoppedError(ValueError):
  """SIGTERM has stopped a command; what it saved is kept."""


def run_to_end(command: StageCommand, log: Path) -> None:
  """Runs a command, whose output is added to a log, until it ends.

  SIGTERM to this process stops the command, which may first save its work.

  Raises:
    StoppedError: SIGTERM came.
    ValueError: The command failed; the message has the end of its log.
  """
  with stop_on_sigterm() as stop:
    process = _start(command.argv, log)
    try:
      while process.poll() is None:
        if stop.wait(_POLL_SECONDS):
          break
    finally:
      process.terminate()
      code = process.wait()
  if stop.is_set():
    raise StoppedError(f"stopped in `realm_jax.{command.module}`; see {log}")
  if code:
    raise ValueError(
      f"`realm_jax.{command.module}` ended with {code}:\n{tail(log)}\n"
      f"  the whole log is {log}"
    )


@contextlib.contextmanager
def running_beside(
  command: StageCommand, log: Path, *, wait: bool
) -> Iterator[None]:
  """Runs a command during the `with` block, which ends if the command fails.

  The block is then stopped by SIGTERM. At its end the command is terminated,
  or waited for.

  Raises:
    StoppedError: SIGTERM came from elsewhere.
    ValueError: The command failed, or what the block raised.
  """
  # Training has priority; the builder takes the cores that are left.
  process = _start(["nice", "-n", "5", *command.argv], log)
  failed, ended = threading.Event(), threading.Event()

  def watch() -> None:
    if process.wait() > 0:
      failed.set()
      # Repeated, because training may not have installed its handler yet.
      while not ended.wait(1.0):
        os.kill(os.getpid(), signal.SIGTERM)

  watcher = threading.Thread(target=watch)
  with stop_on_sigterm() as stop:
    watcher.start()
    try:
      yield
      if wait:
        process.wait()
    except ValueError:
      if not failed.is_set():
        raise
    finally:
      ended.set()
      process.terminate()
      watcher.join()
  if failed.is_set():
    raise ValueError(f"the index builder failed:\n{tail(log)}\n  see {log}")
  if stop.is_set():
    raise StoppedError("stopped by SIGTERM; the outputs so far are kept")


def _start(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open("a") as output:
    return subprocess.Popen(
      argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def tail(log: Path) -> str:
  """Returns the last lines of a log."""
  return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
