"""Experiments as steps of commands: `Steps` creates them, and `run` runs them.

A step trains, evaluates or builds an index in this process, to avoid importing
everything again. The index builder of a training step is a separate process. It
has its own session, so Ctrl-C on a terminal only reaches this process, which
then stops the builder, as after SIGTERM.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.console import stop_on_signal
from realm_jax.errors import RealmError
from realm_jax.evaluation.outputs import METRICS
from realm_jax.launch.jobs import function_of
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.storage.json_files import write_json
from realm_jax.training import trainer
from realm_jax.training.metric_rows import read_rows

_TAIL_LINES = 12

# A value of a gin macro.
Value = str | int | float | bool | None


class StoppedError(RealmError):
  """SIGTERM stopped a step; the same command continues it."""

  exit_code = 128 + signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class Command:
  """`python -m realm_jax.MODULE` with gin files, bindings and flags.

  Directories are bindings instead of `--model_dir`, which would add the run's
  recorded settings: runs of different stages would be evaluated with different
  settings.
  """

  module: str
  gin_files: Sequence[str]
  bindings: Mapping[str, Value]
  flags: Sequence[str] = ()

  def configured(self) -> tuple[configuration.Bindings, Callable[..., Any]]:
    """Returns the configuration, and the function that it configures."""
    function = function_of(f"realm_jax.{self.module}", self.flags)
    bindings = self._gin_bindings()
    return configuration.parsed(function, self.gin_files, bindings), function

  def build(self) -> Any:
    """Returns the configured object, such as a `TrainConfig`."""
    bindings, function = self.configured()
    return bindings.build(function)

  def arguments(self) -> list[str]:
    """Returns the arguments of the Python interpreter."""
    return [
      *("-m", f"realm_jax.{self.module}", *self.flags),
      *(f"--gin_file={file}" for file in self.gin_files),
      *(f"--gin.{binding}" for binding in self._gin_bindings()),
    ]

  def _gin_bindings(self) -> list[str]:
    texts = {
      name: json.dumps(value) if isinstance(value, str) else repr(value)
      for name, value in self.bindings.items()
    }
    return [f"{name}={text}" for name, text in texts.items()]

  def __str__(self) -> str:
    return shlex.join(["python", *self.arguments()])


@dataclasses.dataclass(frozen=True)
class Step:
  """A command that trains, evaluates, or builds a snapshot or a memory.

  Attributes:
    command: `train`, `evaluate`, `build_memory`, or `build_index --once`.
    folder: MODEL_DIR, OUTPUT_DIR of an evaluation or memory, or SNAPSHOTS_DIR.
    needs: Steps that must run before this one.
    builder: Command that builds the index during the step, if needed.
  """

  command: Command
  folder: Path
  needs: Sequence["Step"] = ()
  builder: Command | None = None

  def in_order(self) -> Iterator["Step"]:
    """Yields the steps that this one needs, in order, and then itself."""
    for step in self.needs:
      yield from step.in_order()
    yield self

  def is_finished(self) -> bool:
    """Returns whether its metrics, last checkpoint or index exist."""
    if self.command.module == "build_memory":
      return self.folder.exists()
    if self.command.module == "evaluate":
      return (self.folder / METRICS).exists()
    if self.command.module == "build_index":
      built = SnapshotStore(self.folder).steps()
      step = self.command.bindings.get("CHECKPOINT_STEP")
      return bool(built) if step is None else step in built
    with contextlib.closing(CheckpointStore(self.folder)) as store:
      return store.steps()[-1:] == [self.command.build().num_steps]

  def metrics(self) -> dict[str, Any]:
    """Returns the metrics of a finished evaluation."""
    return json.loads((self.folder / METRICS).read_text())


@dataclasses.dataclass
class Steps:
  """Creates the steps of one folder from recipes, without running them.

  Attributes:
    folder: Folder for everything that the steps write.
    recipes: Gin files by stage.
    corpus_dir: Default corpus of the steps.
    always: Additional bindings, by stage.
  """

  folder: Path
  recipes: Mapping[str, Sequence[str]]
  corpus_dir: str
  always: Mapping[str, Mapping[str, Value]]

  def path(self, name: str) -> str:
    """Returns the path of a file or folder, as the value of a binding."""
    return str(self.folder / name)

  def command(
    self, module: str, recipe: str, run: Path, *flags: str, **bindings: Value
  ) -> Command:
    """Returns a command with a recipe's gin files, for a MODEL_DIR."""
    if recipe not in self.recipes:
      raise RealmError(
        f"{recipe!r} has no gin files, unlike {', '.join(self.recipes)}: "
        "change RECIPES"
      )
    directories = {"MODEL_DIR": str(run), "CORPUS_DIR": self.corpus_dir}
    all_bindings = {**directories, **self.always.get(recipe, {}), **bindings}
    return Command(module, self.recipes[recipe], all_bindings, flags)

  def builder(
    self, name: str, recipe: str = "build_index", **bindings: Value
  ) -> Command:
    """Returns the command that refreshes the index of a run."""
    return self.command("build_index", recipe, self.folder / name, **bindings)

  def first_snapshot(self, name: str) -> Command:
    """Returns the command that builds the first snapshot of a run."""
    builder = self.builder(name, CHECKPOINT_STEP=0)
    return dataclasses.replace(builder, flags=("--once",))

  def train(
    self,
    name: str,
    recipe: str,
    retriever: Step | None = None,
    reader: Step | None = None,
    builder: Command | None = None,
    **bindings: Value,
  ) -> Step:
    """Returns the training of a run.

    It may start from the retriever and the reader of other runs.
    """
    starts = {"INITIAL_CHECKPOINT": retriever, "INITIAL_READER": reader}
    steps = {name: run for name, run in starts.items() if run is not None}
    paths = {name: str(run.folder) for name, run in steps.items()}
    folder = self.folder / name
    command = self.command("train", recipe, folder, **{**bindings, **paths})
    return Step(command, folder, [*steps.values()], builder)

  def evaluate(
    self,
    name: str,
    recipe: str,
    run: Step,
    snapshot: Step | None = None,
    **bindings: Value,
  ) -> Step:
    """Returns the evaluation of a run, optionally with another run's snapshot.

    The metrics are written to a folder in `evaluations`.
    """
    folder = self.folder / "evaluations" / name
    paths, needs = {"OUTPUT_DIR": str(folder)}, [run]
    if snapshot is not None:
      paths["SNAPSHOT"] = str(snapshot.folder)
      needs.append(snapshot)
    all_bindings = {**paths, **bindings}
    command = self.command("evaluate", recipe, run.folder, **all_bindings)
    return Step(command, folder, needs)

  def build_index(
    self,
    run: Step,
    name: str | None = None,
    recipe: str = "build_index",
    **bindings: Value,
  ) -> Step:
    """Returns the build of a run's snapshot, in its own or a named folder."""
    snapshots, folder = {}, run.folder / "snapshots"
    if name is not None:
      folder = self.folder / name
      snapshots["SNAPSHOTS_DIR"] = str(folder)
    command = self.command(
      *("build_index", recipe, run.folder, "--once"), **snapshots, **bindings
    )
    return Step(command, folder, [run])


def markdown(rows: Sequence[Sequence[object]]) -> str:
  """Returns rows as a Markdown table; the first row is the header."""
  header, *body = (f"| {' | '.join(map(str, row))} |" for row in rows)
  rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
  return "\n".join([header, rule, *body])


def over_seeds(values: Sequence[float]) -> str:
  """Returns the mean over seeds and their standard deviation."""
  if not values:
    return ""
  if max(values) > 1:
    return f"{statistics.mean(values):.0f}"
  spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
  return f"{statistics.mean(values):.3f}{spread}"


def steps_of_equal_seconds(
  num_steps: int, seconds: float, own_seconds: float, *, every: int = 1
) -> int:
  """Returns the number of steps that take as long as another run's.

  The other run has `num_steps` steps of `seconds` each; these steps take
  `own_seconds` each. The result is rounded to a multiple of `every`, the
  interval of checkpoints, so that runs with about the same cost are trained
  equally.
  """
  exact = num_steps * seconds / own_seconds
  return max(1, round(exact / every)) * every


def run(step: Step) -> Step:
  """Runs a step and the steps that it needs, unless they are finished.

  Prints the equivalent commands, and returns the finished step. Raises the
  same errors as `call`; after an error, another call continues the step.
  """
  if step.is_finished():
    return step
  for needed in step.needs:
    run(needed)
  with contextlib.ExitStack() as stack:
    if step.builder is not None and "--once" in step.builder.flags:
      # One after the other, in this process: the trainer would only wait.
      print(f"\n$ {step.builder} &", flush=True)
      call(step.command, num_steps=0)
      call(step.builder)
    elif step.builder is not None:
      log = step.folder / "build_index.log"
      print(f"\n$ {step.builder} &     # log: {log}", flush=True)
      stack.enter_context(running_beside(step.builder.arguments(), log))
    print(f"\n$ {step.command}", flush=True)
    call(step.command)
  return step


def run_in_cpu_seconds(step: Step) -> float:
  """Completes a training, and returns its total CPU time in seconds.

  This includes the time of processes that SIGTERM stopped, but not of processes
  that were killed.
  """
  path = step.folder / "cpu_seconds.json"
  seconds = json.loads(path.read_text()) if path.exists() else 0.0
  if not step.is_finished():
    started, compiled = time.process_time(), _compile_seconds(step)
    try:
      run(step)
    finally:
      compiled = _compile_seconds(step) - compiled
      # The compile time is wall time, which under load exceeds CPU time.
      seconds += max(0.0, time.process_time() - started - compiled)
      write_json(path, seconds)
  return seconds


def _compile_seconds(step: Step) -> float:
  """Returns the compile time of a training, in all of its processes."""
  rows = read_rows(step.folder)
  return rows[-1]["run_seconds"]["compile"] if rows else 0.0


def call(command: Command, *, num_steps: int | None = None) -> None:
  """Runs a command in this process.

  `num_steps` replaces the number of a trainer's steps; with 0, it only saves
  the checkpoint for the first snapshot.

  Raises:
    StoppedError: SIGTERM arrived. A trainer has saved a checkpoint, a builder
      has published nothing, and an evaluation has completed.
    ValueError: A file or a binding is wrong, or the command failed.
  """
  with stop_on_signal() as stop:
    bindings, function = command.configured()
    once = {"once": True} if "--once" in command.flags else {}
    configured = bindings.build(function, **once)
    if command.module == "train":
      if num_steps is not None:
        configured = dataclasses.replace(configured, num_steps=num_steps)
      trainer.train(configured)
    if stop.is_set():
      raise StoppedError(
        f"stopped by SIGTERM in {command.module}; the same command continues"
      )


@contextlib.contextmanager
def running_beside(arguments: Sequence[str], log: Path) -> Iterator[None]:
  """Runs Python with some arguments as a process during a `with` block.

  Its output is appended to a log. If it fails, SIGTERM stops the block, which
  has to end then (`console.is_stopping`). At the end of the block, the process
  is terminated.

  Raises:
    StoppedError: SIGTERM came from elsewhere.
    RealmError: The process failed.
  """
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open("a") as output:
    # Training has priority; the builder uses idle cores.
    process = subprocess.Popen(
      ["nice", "-n", "5", sys.executable, *arguments],
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
  ended = threading.Event()

  def watch() -> None:
    # Repeated, because training may not have installed its handler yet.
    while process.wait() > 0 and not ended.is_set():
      os.kill(os.getpid(), signal.SIGTERM)
      ended.wait(1.0)

  watcher = threading.Thread(target=watch)
  with stop_on_signal() as stop:
    watcher.start()
    try:
      yield
    except ValueError:
      if (process.poll() or 0) <= 0:
        raise
    finally:
      ended.set()
      process.terminate()
      watcher.join()
  if process.returncode > 0:
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    raise RealmError(
      f"{log.stem} failed:\n" + "\n".join(lines) + f"\n  see {log}"
    )
  if stop.is_set():
    raise StoppedError("stopped by SIGTERM; the same command continues")
