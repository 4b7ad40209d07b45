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

from benchmarks.record.steps import SPELLINGS, Step

_PATIENCE_SECONDS = 600.0
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

  def words(self, command: str) -> list[str]:
    """Returns the words of a command of `steps`."""
    command = spelled(command, self.name)
    for name in ("shared", "out", "fixed"):
      command = command.replace(f"{{{name}}}", str(getattr(self, name)))
    first, *others = shlex.split(command)
    return [self.python if first == "python" else first, *others]

  def run(self, steps: Sequence[Step], *, at_once: int) -> None:
    """Runs all steps, some of them at once.

    Raises:
      RecordError: A command failed.
    """
    self.out.mkdir(parents=True, exist_ok=True)
    started: dict[str, concurrent.futures.Future[None]] = {}

    def after_others(step: Step) -> None:
      # A step is submitted after those that it needs, so that these run.
      for name in step.needs:
        if name in started:
          started[name].result()
      self._run_step(step)

    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
      for step in steps:
        if self.name == "base" or not step.is_fixed:
          started[step.name] = threads.submit(after_others, step)
      try:
        for future in concurrent.futures.as_completed(started.values()):
          future.result()
      except RecordError:
        threads.shutdown(cancel_futures=True)
        raise

  def _run_step(self, step: Step) -> None:
    start = time.monotonic()
    for source, target in step.copies:
      shutil.copytree(self.out / source, self.out / target)
    with self._beside(step):
      for command in step.commands:
        process = self._start(step.name, command)
        if process.wait():
          raise self._failed(step.name, command, process.returncode)
    seconds = time.monotonic() - start
    print(f"{self.name}: {step.name} ({seconds:.0f} s)", flush=True)

  @contextlib.contextmanager
  def _beside(self, step: Step) -> Iterator[None]:
    """Runs the step's other command, and asks the page that it may serve."""
    if step.beside is None:
      yield
      return
    name = f"{step.name}_beside"
    process = self._start(name, step.beside)
    try:
      yield
      if step.requests:
        self._ask(step, process, self.out / f"{name}.stdout")
      if "--once" in step.beside:
        process.wait()
      else:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE_SECONDS)
    finally:
      process.kill()
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
      raise self._failed(name, step.beside, process.returncode)

  def _ask(
    self, step: Step, process: subprocess.Popen[bytes], printed: Path
  ) -> None:
    """Writes what the page replies, once the command has said where it is."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    while not (found := re.search(r"http://[^\s/]+", printed.read_text())):
      if process.poll() is not None or time.monotonic() > limit:
        raise self._failed(step.name, step.beside or "", process.returncode)
      time.sleep(0.1)
    with (self.out / f"{step.name}.jsonl").open("w") as lines:
      for text in step.requests:
        request = urllib.request.Request(
          f"{found[0]}/api/ask",
          data=json.dumps({"text": text, "edits": []}).encode(),
          headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(
          request, timeout=_PATIENCE_SECONDS
        ) as reply:
          lines.write(json.dumps(json.load(reply)) + "\n")

  def _start(self, name: str, command: str) -> subprocess.Popen[bytes]:
    words = self.words(command)
    with (
      (self.out / f"{name}.stdout").open("wb") as printed,
      (self.out / f"{name}.log").open("ab") as log,
    ):
      log.write(f"$ {shlex.join(words)}\n".encode())
      log.flush()
      return subprocess.Popen(
        words,
        cwd=self.tree,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.tree)},
        stdout=printed,
        stderr=log,
      )

  def _failed(self, name: str, command: str, code: int | None) -> RecordError:
    log = (self.out / f"{name}.log").read_text(errors="replace")[-3000:]
    return RecordError(
      f"{self.name}, step {name}: ended with {code}\n{command}\n{log}"
    )


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
