"""Steps of other commands, which the demo and the ablations run in order.

A step trains, evaluates or builds an index in this process, which saves the
seconds of importing everything again. The index builder of a step that trains
is a process with a session of its own, so that Ctrl-C on a terminal reaches
this process alone, which stops the builder as SIGTERM does.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax import configuration
from realm_jax.console import stop_on_sigterm
from realm_jax.errors import RealmError
from realm_jax.launch.jobs import function_of

_TAIL_LINES = 12

# A value that a gin macro is bound to.
Value = str | int | float | bool | None


class StoppedError(RealmError):
  """SIGTERM has stopped a step; the same command continues it."""

  exit_code = 128 + signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class Command:
  """`python -m realm_jax.MODULE` with gin files and bindings.

  Directories are bindings, too, and not `--model_dir`: that would add what the
  run has recorded, so that runs of different stages would be evaluated by
  different settings.

  Attributes:
    module: Name of the entry point, such as `train`.
    gin_files: Gin files; later ones override earlier ones.
    bindings: Values by name, which override all files.
    flags: Further flags.
  """

  module: str
  gin_files: Sequence[str]
  bindings: Mapping[str, Value]
  flags: Sequence[str] = ()

  def configured(self) -> tuple[configuration.Bindings, Callable[..., Any]]:
    """Returns the configuration, and the function that is built of it.

    Raises:
      ValueError: A file or a binding is wrong.
    """
    function = function_of(f"realm_jax.{self.module}", self.flags)
    given = [f"{name} = {value}" for name, value in self._gin_values()]
    return configuration.parsed(function, self.gin_files, given), function

  def build(self, **arguments: Any) -> Any:
    """Returns what the command configures, such as a `TrainConfig`."""
    bindings, function = self.configured()
    return bindings.build(function, **arguments)

  def arguments(self) -> list[str]:
    """Returns the arguments of the Python interpreter."""
    return [
      *("-m", f"realm_jax.{self.module}", *self.flags),
      *(f"--gin_file={file}" for file in self.gin_files),
      *(f"--gin.{name}={value}" for name, value in self._gin_values()),
    ]

  def _gin_values(self) -> Iterator[tuple[str, str]]:
    for name, value in self.bindings.items():
      text = json.dumps(value) if isinstance(value, str) else repr(value)
      yield name, text

  def __str__(self) -> str:
    return shlex.join(["python", *self.arguments()])


@dataclasses.dataclass(frozen=True)
class Step:
  """A command that trains or evaluates, or builds one snapshot.

  Attributes:
    name: Name of the step among those of its folder.
    command: `train`, `evaluate`, or `build_index --once`.
    folder: MODEL_DIR, OUTPUT_DIR of an evaluation, or SNAPSHOTS_DIR.
    needs: Names of the steps that come before it.
    builder: Command that builds the index meanwhile, if it needs one.
  """

  name: str
  command: Command
  folder: Path
  needs: Sequence[str] = ()
  builder: Command | None = None

  def is_finished(self) -> bool:
    """Returns whether its figures, last checkpoint or snapshot are there."""
    if self.command.module == "evaluate":
      return self._figures.exists()
    if self.command.module == "build_index":
      from realm_jax.snapshots.store import SnapshotStore

      built = SnapshotStore(self.folder).steps()
      wanted = self.command.bindings.get("CHECKPOINT_STEP")
      return bool(built) if wanted is None else wanted in built
    from realm_jax.checkpoints.store import CheckpointStore

    with contextlib.closing(CheckpointStore(self.folder)) as store:
      steps = store.steps()
    if not steps:
      return False
    return max(steps) == self.command.build().num_steps

  def figures(self) -> dict[str, Any]:
    """Returns the figures of an evaluation that is finished."""
    return json.loads(self._figures.read_text())

  @property
  def _figures(self) -> Path:
    from realm_jax.evaluation.outputs import METRICS

    return self.folder / METRICS


class Steps:
  """Makes the steps of one folder from recipes.

  Attributes:
    folder: Folder of all that the steps write.
    corpus_dir: Corpus of the steps that name no other one.
    made: All steps that were made, by name.
  """

  def __init__(
    self,
    folder: Path,
    recipes: Mapping[str, Sequence[str]],
    *,
    corpus_dir: str | None = None,
    always: Mapping[str, Mapping[str, Value]] | None = None,
  ):
    """Takes the gin files of each recipe, and bindings `always` added to it."""
    self.folder = folder
    self.corpus_dir = corpus_dir or self.path("corpus")
    self.made: dict[str, Step] = {}
    self._recipes, self._always = recipes, always or {}

  def path(self, name: str) -> str:
    """Returns the path of a file or folder as the value of a binding."""
    return str(self.folder / name)

  def command(
    self, module: str, recipe: str, of: str, *flags: str, **bindings: Value
  ) -> Command:
    """Returns a command with the gin files of a recipe, over the run `of`."""
    directories = {"MODEL_DIR": self.path(of), "CORPUS_DIR": self.corpus_dir}
    given = {**directories, **self._always.get(recipe, {}), **bindings}
    return Command(module, self._recipes[recipe], given, flags)

  def train(
    self,
    name: str,
    recipe: str,
    retriever: str | None = None,
    reader: str | None = None,
    builder: Command | None = None,
    **bindings: Value,
  ) -> Step:
    """Makes a run that starts from the retriever and the reader of others."""
    starts = {"INITIAL_CHECKPOINT": retriever, "INITIAL_READER": reader}
    found = {name: run for name, run in starts.items() if run is not None}
    paths = {name: self.path(run) for name, run in found.items()}
    command = self.command("train", recipe, name, **{**bindings, **paths})
    needs = [*found.values()]
    return self._add(Step(name, command, self.folder / name, needs, builder))

  def evaluate(
    self,
    name: str,
    recipe: str,
    of: str,
    snapshot: str | None = None,
    **bindings: Value,
  ) -> Step:
    """Makes the evaluation of a run, over a snapshot if another than its own.

    The figures are written to a folder of `evaluations`.
    """
    name = f"evaluations/{name}"
    paths = {"OUTPUT_DIR": self.path(name)}
    if snapshot is not None:
      paths["SNAPSHOT"] = self.path(snapshot)
    command = self.command("evaluate", recipe, of, **{**paths, **bindings})
    needs = [of] if snapshot is None else [of, snapshot]
    return self._add(Step(name, command, self.folder / name, needs))

  def build_index(
    self, of: str, name: str | None = None, **bindings: Value
  ) -> Step:
    """Makes the build of a run's snapshot, in its folder or in one by name."""
    own = {} if name is None else {"SNAPSHOTS_DIR": self.path(name)}
    command = self.command(
      *("build_index", "build_index", of, "--once"), **own, **bindings
    )
    name = name or f"{of}/snapshots"
    return self._add(Step(name, command, self.folder / name, [of]))

  def _add(self, step: Step) -> Step:
    self.made[step.name] = step
    return step


def run(step: Step) -> Step:
  """Runs a step, or what is left of it; prints its commands as one types them.

  Returns the step, which is finished.

  Raises:
    StoppedError: SIGTERM came; to run the step again continues it.
    ValueError: A file or a binding is wrong, or the step fails.
  """
  if not step.is_finished():
    with contextlib.ExitStack() as stack:
      if step.builder is not None:
        log = step.folder / "build_index.log"
        print(f"\n$ {step.builder} &     # log: {log}", flush=True)
        stack.enter_context(running_beside(step.builder.arguments(), log))
      call(step.command)
  return step


def call(command: Command) -> None:
  """Prints a command and does in this process what it would do.

  Raises:
    StoppedError: SIGTERM came. A trainer has saved a checkpoint, a builder has
      published nothing, and an evaluation has come to its end.
    ValueError: A file or a binding is wrong, or the command fails.
  """
  print(f"\n$ {command}", flush=True)
  with stop_on_sigterm() as stop:
    bindings, function = command.configured()
    once = {"once": True} if "--once" in command.flags else {}
    made = bindings.build(function, **once)
    if command.module == "train":
      from realm_jax.training import trainer

      trainer.train(made)
    if stop.is_set():
      raise StoppedError(
        f"stopped by SIGTERM in {command.module}; the same command continues"
      )


@contextlib.contextmanager
def running_beside(arguments: Sequence[str], log: Path) -> Iterator[None]:
  """Runs Python with these arguments as a process during the `with` block.

  Its output is added to a log. If it fails, the block is stopped by SIGTERM. At
  the end of the block it is terminated.

  Raises:
    StoppedError: SIGTERM came from elsewhere.
    ValueError: The process failed, or what the block raised.
  """
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open("a") as output:
    # Training has priority; the builder takes the cores that are left.
    process = subprocess.Popen(
      ["nice", "-n", "5", sys.executable, *arguments],
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
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
    except ValueError:
      if not failed.is_set():
        raise
    finally:
      ended.set()
      process.terminate()
      watcher.join()
  if failed.is_set():
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    raise RealmError(
      "the index builder failed:\n" + "\n".join(lines) + f"\n  see {log}"
    )
  if stop.is_set():
    raise StoppedError("stopped by SIGTERM; the same command continues")
