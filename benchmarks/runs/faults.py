"""Faults to inject into a run: kills, damage, a full disk, a late builder.

Faults are injected into a run whose trainer and builders are processes. A
process that ends afterwards is restarted, and nothing else is repaired.
"""

import contextlib
import dataclasses
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.runs.disturbed import CRASH, CUT, Disturbed
from benchmarks.runs.jobs import Run
from realm_jax.generations.store import layout

# Target of a fault that found nothing to damage.
NOTHING = "nothing"
_SEARCHES = b"realm_jax.indexes.isolated"
# A fault is injected at most this many checkpoints after its own.
_LATEST_CHECKPOINTS = 2


@dataclasses.dataclass(frozen=True)
class Fault:
  """A planned fault.

  Attributes:
    kind: One of `KINDS`.
    checkpoint: Step whose checkpoint must be saved first.
    delay_seconds: Delay after that checkpoint; shorter if the run saves two
      more checkpoints first.
    seed: Seed of the other choices: which file, which byte, how long.
  """

  kind: str
  checkpoint: int
  delay_seconds: float
  seed: int


@dataclasses.dataclass
class InjectedFault:
  """An injected fault, and its consequences.

  Attributes:
    fault: The planned fault.
    what: Target of the fault.
    checkpoint: Step of the last checkpoint.
    generation: Step of the last published generation.
    half_written: Checkpoints and generations that were being written.
    observed: Events logged until the next fault, with their counts.
  """

  fault: Fault
  what: str
  checkpoint: int
  generation: int
  half_written: tuple[str, ...]
  observed: dict[str, int]


def searching(parent: int | None = None) -> dict[int, int]:
  """Returns the processes that search an index, with their parents.

  Args:
    parent: Process whose children to list; None lists all processes.
  """
  found = {}
  for path in Path("/proc").glob("[0-9]*"):
    try:
      stat = path.joinpath("stat").read_text().rpartition(")")[2].split()
      command = path.joinpath("cmdline").read_bytes()
    except OSError:
      continue  # It ended meanwhile.
    if _SEARCHES in command and parent in (None, int(stat[1])):
      found[int(path.name)] = int(stat[1])
  return found


def _kill(*names: str) -> Callable[[Disturbed, np.random.Generator], str]:
  def kill(here: Disturbed, rng: np.random.Generator) -> str:
    del rng
    alive = time.monotonic() - here.jobs[names[0]].started_at
    here.restart(*names)
    return f"{' and '.join(names)}, {alive:.1f} s old"

  return kill


def _crash_search(here: Disturbed, rng: np.random.Generator) -> str:
  trainer = here.jobs["trainer"]
  here.wait(lambda: bool(searching(trainer.pid)), what="process that searches")
  for process in searching(trainer.pid):
    kind = rng.choice([signal.SIGKILL, signal.SIGSEGV])
    with contextlib.suppress(ProcessLookupError):
      os.kill(process, kind)
      return signal.Signals(kind).name
  return NOTHING


def _some_file(run: Run, rng: np.random.Generator) -> Path | None:
  generations = run.model_dir / layout.FOLDER
  steps = layout.published_steps(generations)
  if not steps:
    return None
  directory = Path(layout.path_of(generations, int(rng.choice(steps))))
  files = sorted(path for path in directory.rglob("*") if path.is_file())
  return files[rng.integers(len(files))] if files else None


def _damage(
  harm: Callable[[Path, int, np.random.Generator], None],
) -> Callable[[Disturbed, np.random.Generator], str]:
  """Returns a fault that damages a file in place, even if it is mapped."""

  def damage(here: Disturbed, rng: np.random.Generator) -> str:
    with contextlib.suppress(FileNotFoundError):
      if (path := _some_file(here.run, rng)) is not None:
        place = int(rng.integers(max(1, path.stat().st_size)))
        harm(path, place, rng)
        folder = here.run.model_dir / layout.FOLDER
        return f"{path.relative_to(folder)} at {place}"
    return NOTHING

  return damage


def _cut(path: Path, place: int, rng: np.random.Generator) -> None:
  del rng
  os.truncate(path, place)


def _flip(path: Path, place: int, rng: np.random.Generator) -> None:
  with path.open("r+b") as file:
    file.seek(place)
    byte = file.read(1)
    if byte:
      file.seek(place)
      file.write(bytes([byte[0] ^ 1 << int(rng.integers(8))]))


def _remove_one(here: Disturbed, rng: np.random.Generator) -> str:
  generations = here.run.model_dir / layout.FOLDER
  steps = layout.published_steps(generations)
  if not steps:
    return NOTHING
  step = int(rng.choice(steps))
  shutil.rmtree(layout.path_of(generations, step), ignore_errors=True)
  return str(step)


def _remove_all(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  generations = here.run.model_dir / layout.FOLDER
  steps = layout.published_steps(generations)
  shutil.rmtree(generations, ignore_errors=True)
  return str(steps)


def _second_builder(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  return here.toggle_second_builder()


def _stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  seconds = rng.uniform(1, 6)
  builder = here.jobs["builder"]
  os.kill(builder.pid, signal.SIGSTOP)
  here.wait_seconds(seconds)
  os.kill(builder.pid, signal.SIGCONT)
  return f"{seconds:.1f} s"


def _late_builder(here: Disturbed, rng: np.random.Generator) -> str:
  seconds = rng.uniform(1, 6)
  builder = here.jobs.pop("builder")
  builder.kill()
  here.wait_seconds(seconds)
  builder.start()
  here.jobs["builder"] = builder
  return f"{seconds:.1f} s"


def _full_disk(here: Disturbed, rng: np.random.Generator) -> str:
  # A limit on the size of files makes writes fail, as on a full disk, and needs
  # no privileges.
  limit, seconds = int(10 ** rng.uniform(1, 5)), rng.uniform(0.5, 4)
  builder = here.jobs["builder"]
  process, kind = builder.pid, resource.RLIMIT_FSIZE
  _, hard = resource.prlimit(process, kind)
  resource.prlimit(process, kind, (limit, hard))
  here.wait_seconds(seconds)
  if builder.pid == process:
    resource.prlimit(process, kind, (hard, hard))
  return f"files above {limit} bytes, {seconds:.1f} s"


KINDS: Mapping[str, Callable[[Disturbed, np.random.Generator], str]] = {
  "kill trainer": _kill("trainer"),
  "kill builder": _kill("builder"),
  "kill both": _kill("trainer", "builder"),
  CRASH: _crash_search,
  CUT: _damage(_cut),
  "flip bit": _damage(_flip),
  "remove generation": _remove_one,
  "remove generations": _remove_all,
  "second builder": _second_builder,
  "stop builder": _stop_builder,
  "late builder": _late_builder,
  "full disk": _full_disk,
}


def inject(here: Disturbed, fault: Fault) -> InjectedFault | None:
  """Waits for a fault's time and injects it; None if the run ended first.

  Raises:
    JobError: A process ended without a line that explains it.
  """
  run = here.run
  what = f"checkpoint {fault.checkpoint}"
  if not here.wait(
    lambda: run.last_checkpoint() >= fault.checkpoint, what=what
  ):
    return None
  # Otherwise a fast run would end before the last faults.
  end = time.monotonic() + fault.delay_seconds
  latest = fault.checkpoint + _LATEST_CHECKPOINTS * run.save_every_steps
  if not here.wait(
    lambda: time.monotonic() > end or run.last_checkpoint() >= latest,
    what="passing of time",
  ):
    return None
  met = InjectedFault(
    fault,
    what="",
    checkpoint=run.last_checkpoint(),
    generation=run.last_generation(),
    half_written=tuple(run.half_written()),
    observed={},
  )
  here.kinds.add(fault.kind)
  met.what = KINDS[fault.kind](here, np.random.default_rng(fault.seed))
  return met
