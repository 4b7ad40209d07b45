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
from benchmarks.faults.injection import NOTHING, Injector, stop_for_seconds
from benchmarks.runs.jobs import searching
from benchmarks.runs.pretraining import Run
from realm_jax.generations.store import FOLDER, GenerationStore


def _kill(*names: str) -> Injector:
  def kill(here: Disturbed, rng: np.random.Generator) -> str:
    del rng
    alive = time.monotonic() - here.jobs[names[0]].started_at
    here.restart(*names)
    return f"{' and '.join(names)}, {alive:.1f} s old"

  return kill


def _crash_search(here: Disturbed, rng: np.random.Generator) -> str:
  trainer = here.trainer
  here.wait(lambda: bool(searching(trainer.pid)), what="process that searches")
  for process in searching(trainer.pid):
    kind = rng.choice([signal.SIGKILL, signal.SIGSEGV])
    with contextlib.suppress(ProcessLookupError):
      os.kill(process, kind)
      return signal.Signals(kind).name
  return NOTHING


def _generations(run: Run) -> GenerationStore:
  return GenerationStore(Path(run.model_dir) / FOLDER)


def _some_file(run: Run, rng: np.random.Generator) -> Path | None:
  generations = _generations(run)
  steps = generations.steps()
  if not steps:
    return None
  directory = Path(generations.path(int(rng.choice(steps))))
  files = sorted(path for path in directory.rglob("*") if path.is_file())
  return files[rng.integers(len(files))] if files else None


def _damage(
  harm: Callable[[Path, int, np.random.Generator], None],
) -> Injector:
  """Returns a fault that damages a file in place, even if it is mapped."""

  def damage(here: Disturbed, rng: np.random.Generator) -> str:
    with contextlib.suppress(FileNotFoundError):
      if (path := _some_file(here.run, rng)) is not None:
        place = int(rng.integers(max(1, path.stat().st_size)))
        harm(path, place, rng)
        folder = Path(_generations(here.run).directory)
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
  generations = _generations(here.run)
  steps = generations.steps()
  if not steps:
    return NOTHING
  step = int(rng.choice(steps))
  shutil.rmtree(generations.path(step), ignore_errors=True)
  return str(step)


def _remove_all(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  generations = _generations(here.run)
  steps = generations.steps()
  shutil.rmtree(generations.directory, ignore_errors=True)
  return str(steps)


def _second_builder(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  return here.toggle_second_builder()


def _stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  seconds = rng.uniform(1, 6)
  stop_for_seconds(here, "builder", seconds)
  return f"{seconds:.1f} s"


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
