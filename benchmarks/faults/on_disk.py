"""Faults of a run on a disk: kills, damage, a full disk, a late builder."""

import contextlib
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.faults.disturbed import CRASH, CUT, Disturbed
from benchmarks.faults.injection import NOTHING, Injector
from benchmarks.runs.jobs import searching
from realm_jax.generations.store import FOLDER, GenerationStore

_SECOND = "second builder"


def kill(*names: str) -> Injector:
  """Returns a fault that kills all named processes, then restarts them."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    del rng
    jobs = [here.jobs[name] for name in names]
    alive = time.monotonic() - jobs[0].started_at
    for job in jobs:
      job.kill()
    for job in jobs:
      job.start()
    return f"{' and '.join(names)}, {alive:.1f} s old"

  return inject


def stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  """Suspends the builder by SIGSTOP; it may be restarted meanwhile."""
  seconds, builder = rng.uniform(1, 6), here.builders["builder"]
  process = builder.pid
  os.kill(process, signal.SIGSTOP)
  here.wait_seconds(seconds)
  if builder.pid == process:
    os.kill(process, signal.SIGCONT)
  return f"{seconds:.1f} s"


def _crash_search(here: Disturbed, rng: np.random.Generator) -> str:
  trainer = here.trainer
  here.wait(lambda: bool(searching(trainer.pid)), what="process that searches")
  for process in searching(trainer.pid):
    number = rng.choice([signal.SIGKILL, signal.SIGSEGV])
    with contextlib.suppress(ProcessLookupError):
      os.kill(process, number)
      return signal.Signals(number).name
  return NOTHING


def _damage(harm: Callable[[Path, int, np.random.Generator], None]) -> Injector:
  """Returns a fault that damages a file in place, even if it is mapped."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    if files := sorted(here.run.published_objects()):
      name = str(rng.choice(files))
      path = Path(here.run.model_dir) / name
      with contextlib.suppress(FileNotFoundError):
        place = int(rng.integers(max(1, path.stat().st_size)))
        harm(path, place, rng)
        return f"{name} at {place}"
    return NOTHING

  return inject


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
  generations = GenerationStore(Path(here.run.model_dir) / FOLDER)
  steps = generations.steps()
  if not steps:
    return NOTHING
  step = int(rng.choice(steps))
  shutil.rmtree(generations.path(step), ignore_errors=True)
  return str(step)


def _remove_all(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  generations = GenerationStore(Path(here.run.model_dir) / FOLDER)
  steps = generations.steps()
  shutil.rmtree(generations.directory, ignore_errors=True)
  return str(steps)


def _second_builder(here: Disturbed, rng: np.random.Generator) -> str:
  """Starts a second builder, or kills it if there is one."""
  del rng
  if (second := here.builders.pop(_SECOND, None)) is not None:
    second.kill()
    return "killed"
  here.builders[_SECOND] = here.run.builder(_SECOND)
  here.builders[_SECOND].start()
  return "joined"


def _late_builder(here: Disturbed, rng: np.random.Generator) -> str:
  seconds = rng.uniform(1, 6)
  builder = here.builders.pop("builder")
  builder.kill()
  here.wait_seconds(seconds)
  builder.start()
  here.builders["builder"] = builder
  return f"{seconds:.1f} s"


def _full_disk(here: Disturbed, rng: np.random.Generator) -> str:
  # A limit on the size of files makes writes fail, as on a full disk, and needs
  # no privileges.
  limit, seconds = int(10 ** rng.uniform(1, 5)), rng.uniform(0.5, 4)
  builder = here.builders["builder"]
  process, kind = builder.pid, resource.RLIMIT_FSIZE
  _, hard = resource.prlimit(process, kind)
  resource.prlimit(process, kind, (limit, hard))
  here.wait_seconds(seconds)
  if builder.pid == process:
    resource.prlimit(process, kind, (hard, hard))
  return f"files above {limit} bytes, {seconds:.1f} s"


KINDS: Mapping[str, Injector] = {
  "kill trainer": kill("trainer"),
  "kill builder": kill("builder"),
  "kill both": kill("trainer", "builder"),
  CRASH: _crash_search,
  CUT: _damage(_cut),
  "flip bit": _damage(_flip),
  "remove generation": _remove_one,
  "remove generations": _remove_all,
  _SECOND: _second_builder,
  "stop builder": stop_builder,
  "late builder": _late_builder,
  "full disk": _full_disk,
}
