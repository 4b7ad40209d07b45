"""A side of the record: a tree of the project, and its outputs."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks.record import forks
from benchmarks.record.steps import SPELLINGS, Step

_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.05
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "CUDA_VISIBLE_DEVICES": "-1",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  # Programs run for seconds, and LLVM would optimize them for as long.
  "XLA_FLAGS": "--xla_backend_optimization_level=0",
  "JAX_ENABLE_COMPILATION_CACHE": "false",
}


class RecordError(ValueError):
  """A command of a side that failed, or a base that cannot be run."""


@dataclasses.dataclass(frozen=True)
class Side:
  """One of the two sides.

  Attributes:
    name: "base" or "now".
    tree: Root of the project's files.
    python: Interpreter of the side.
    shared: Folder of the texts.
    out: Folder of the side's outputs.
    fixed: Folder of the outputs of the base.
  """

  name: str
  tree: Path
  python: str
  shared: Path
  out: Path
  fixed: Path
  _requests: list[IO[str]] = dataclasses.field(default_factory=list, repr=False)

  def words(self, command: str) -> list[str]:
    """Returns the words of a command of `steps`."""
    command = spelled(command, self.name)
    for name in ("shared", "out", "fixed"):
      command = command.replace(f"{{{name}}}", str(getattr(self, name)))
    return shlex.split(command)

  def run(self, steps: Sequence[Step], *, at_once: int) -> list[str]:
    """Runs all steps, some of them at once, and returns what has failed.

    A step that needs one that has failed is left out.
    """
    self.out.mkdir(parents=True, exist_ok=True)
    started: dict[str, concurrent.futures.Future[None]] = {}

    def after_others(step: Step) -> None:
      # A step is submitted after those that it needs, so that these run.
      for name in step.needs:
        if name in started and started[name].exception():
          raise RecordError(f"{self.name}: {step.name} needs {name}")
      self._run_step(step)

    with (
      self._forks(),
      concurrent.futures.ThreadPoolExecutor(at_once) as threads,
    ):
      for step in steps:
        if self.name == "base" or not step.is_fixed:
          started[step.name] = threads.submit(after_others, step)
      failures = [future.exception() for future in started.values()]
    for failure in failures:
      if failure is not None and not isinstance(failure, RecordError):
        raise failure
    return [str(failure) for failure in failures if failure is not None]

  @contextlib.contextmanager
  def _forks(self) -> Iterator[None]:
    """Runs the process that commands are forked from."""
    process = subprocess.Popen(
      [self.python, str(Path(forks.__file__))],
      cwd=self.tree,
      env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.tree)},
      stdin=subprocess.PIPE,
      text=True,
    )
    assert process.stdin is not None
    self._requests.append(process.stdin)
    try:
      yield
    finally:
      process.stdin.close()
      process.wait()

  def _run_step(self, step: Step) -> None:
    start = time.monotonic()
    for source, target in step.copies:
      shutil.copytree(self.out / source, self.out / target)
    with self._beside(step):
      for number, command in enumerate(step.commands):
        running = self._start(f"{step.name}.{number}", command)
        if running.wait():
          raise self._failed(running)
    seconds = time.monotonic() - start
    print(f"{self.name}: {step.name} ({seconds:.0f} s)", flush=True)

  @contextlib.contextmanager
  def _beside(self, step: Step) -> Iterator[None]:
    """Runs the step's other command, and asks the page that it may serve."""
    if step.beside is None:
      yield
      return
    running = self._start(f"{step.name}.beside", step.beside)
    try:
      yield
      if step.requests:
        self._ask(step, running)
      if "--once" not in step.beside:
        running.send(signal.SIGTERM)
      running.wait()
    finally:
      running.send(signal.SIGKILL)
    if running.status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
      raise self._failed(running)

  def _ask(self, step: Step, running: "_Running") -> None:
    """Writes what the page replies, once the command has said where it is."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    while not (found := re.search(r"http://[^\s/]+", running.printed())):
      if running.status is not None or time.monotonic() > limit:
        raise self._failed(running)
      time.sleep(_POLL_SECONDS)
    with (self.out / f"{step.name}.jsonl").open("w") as lines:
      for text in step.requests:
        request = urllib.request.Request(
          f"{found[0]}/api/ask",
          data=json.dumps({"text": text, "edits": []}).encode(),
          headers={"Content-Type": "application/json"},
        )
        reply = urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS)
        with reply:
          lines.write(json.dumps(json.load(reply)) + "\n")

  def _start(self, name: str, command: str) -> "_Running":
    python, minus_m, module, *arguments = self.words(command)
    assert (python, minus_m) == ("python", "-m"), command
    running = _Running(command, self.out / name)
    paths = {
      kind: str(running.path(kind))
      for kind in ("stdout", "stderr", "pid", "status")
    }
    for kind in ("stdout", "stderr"):
      running.path(kind).touch()
    request = {"module": module, "arguments": arguments, **paths}
    self._requests[-1].write(json.dumps(request) + "\n")
    self._requests[-1].flush()
    return running

  def _failed(self, running: "_Running") -> RecordError:
    log = running.path("stderr").read_text(errors="replace")[-3000:]
    return RecordError(
      f"{self.name}: ended with {running.status}\n{running.command}\n{log}"
    )


@dataclasses.dataclass(frozen=True)
class _Running:
  """A command that was forked, and the files that tell of it.

  Attributes:
    command: The command line.
    name: Path of its files without their endings.
  """

  command: str
  name: Path

  def path(self, kind: str) -> Path:
    """Returns the path of one of its files."""
    return self.name.with_name(f"{self.name.name}.{kind}")

  @property
  def status(self) -> int | None:
    """Exit status; None while it runs."""
    path = self.path("status")
    return int(path.read_text()) if path.exists() else None

  def printed(self) -> str:
    """Returns what it has written to its standard output."""
    return self.path("stdout").read_text(errors="replace")

  def wait(self) -> int:
    """Waits for the end, and returns the exit status."""
    while (status := self.status) is None:
      time.sleep(_POLL_SECONDS)
    return status

  def send(self, number: signal.Signals) -> None:
    """Sends a signal, if it still runs."""
    if self.status is None:
      while not self.path("pid").exists():
        time.sleep(_POLL_SECONDS)
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(self.path("pid").read_text()), number)


def spelled(command: str, side: str) -> str:
  """Returns a command with the spellings of the side "base" or "now"."""
  for name, of_base_and_now in SPELLINGS.items():
    which = 0 if side == "base" else 1
    command = command.replace(f"{{{name}}}", of_base_and_now[which])
  return command


def worktree(repository: Path, commit: str, folder: Path) -> Path:
  """Returns a git worktree of a commit, made if it is not there."""
  if not (folder / "setup.py").exists():
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Forced, since git may still know one that was removed with its folder.
    command = ["git", "worktree", "add", "--force", "--detach"]
    done = subprocess.run(
      [*command, str(folder), commit],
      cwd=repository,
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode:
      raise RecordError(f"git has no worktree of {commit}: {done.stderr}")
  return folder
