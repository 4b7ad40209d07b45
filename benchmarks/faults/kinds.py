"""Kinds of faults: kills, damage, a full disk, bad requests to a bucket."""

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.faults.disturbed import CRASH, CUT, Disturbed, Injector
from benchmarks.runs.jobs import searching
from benchmarks.runs.object_store import StoreFault
from realm_jax.generations.store import FOLDER, GenerationStore

# Target of a fault that found nothing to damage.
NOTHING = "nothing"
_SECOND = "second builder"
# What bad requests have in common, as regular expressions.
_REQUESTS = ("", "checkpoints", "generations", "metrics|lease")


def _kill(*names: str, is_late: bool = False) -> Injector:
  """Returns a fault that kills all named jobs, then restarts them."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    jobs = {name: here.jobs.pop(name) for name in names}
    for job in jobs.values():
      job.kill()
    if is_late:
      here.wait_seconds(rng.uniform(1, 6))
    for job in jobs.values():
      job.start()
    here.jobs |= jobs
    return " and ".join(names)

  return inject


def _kill_process(name: str) -> Injector:
  """Returns a fault that kills one process of a job, whose all start again."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    number = int(rng.integers(here.run.num_processes))
    seconds = here.jobs[name].kill_one(number)
    here.jobs[name].start()
    return f"process {number}; all had ended after {seconds:.1f} s"

  return inject


def _stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  """Suspends the builder by SIGSTOP; it may be restarted meanwhile."""
  seconds, builder = rng.uniform(1, 6), here.jobs["builder"]
  process = builder.pid
  os.kill(process, signal.SIGSTOP)
  here.wait_seconds(seconds)
  if builder.pid == process:
    os.kill(process, signal.SIGCONT)
  return f"{seconds:.1f} s"


def _crash_search(here: Disturbed, rng: np.random.Generator) -> str:
  while not (found := searching("", here.jobs["trainer"].pid)):
    here.wait_seconds(0.1)
    if here.is_over():
      return NOTHING
  number = rng.choice([signal.SIGKILL, signal.SIGSEGV])
  with contextlib.suppress(ProcessLookupError):
    os.kill(found[0], number)
  return signal.Signals(number).name


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
  os.truncate(path, place)


def _flip(path: Path, place: int, rng: np.random.Generator) -> None:
  with path.open("r+b") as file:
    file.seek(place)
    byte = file.read(1)
    if byte:
      file.seek(place)
      file.write(bytes([byte[0] ^ 1 << int(rng.integers(8))]))


def _remove_one(here: Disturbed, rng: np.random.Generator) -> str:
  if (step := here.run.last_generation()) < 0:
    return NOTHING
  folder = GenerationStore(Path(here.run.model_dir) / FOLDER).path(step)
  shutil.rmtree(folder, ignore_errors=True)
  return str(step)


def _remove_all(here: Disturbed, rng: np.random.Generator) -> str:
  shutil.rmtree(Path(here.run.model_dir) / FOLDER, ignore_errors=True)
  return "all"


def _second_builder(here: Disturbed, rng: np.random.Generator) -> str:
  """Starts a second builder, or kills it if there is one."""
  if (second := here.jobs.pop(_SECOND, None)) is not None:
    second.kill()
    return "killed"
  here.jobs[_SECOND] = here.run.builder(_SECOND)
  here.jobs[_SECOND].start()
  return "joined"


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


def _bad_requests(kind: str) -> Injector:
  """Returns a fault that lasts for some seconds."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    store, seconds = here.run.store, rng.uniform(1, 6)
    assert store is not None
    match = str(rng.choice(_REQUESTS))
    store.inject(StoreFault(kind, match, times=1_000_000, seconds=8.0))
    here.wait_seconds(seconds)
    (count,) = store.happened()
    store.inject()
    return f"{count} requests of {match or 'any kind'} in {seconds:.1f} s"

  return inject


def _damage_object(here: Disturbed, rng: np.random.Generator) -> str:
  """Flips a bit of an object, or removes it."""
  files, store = here.run.published_objects(), here.run.store
  assert store is not None
  if not files:
    return NOTHING
  name = f"{here.run.prefix}/{rng.choice(files)}"
  if rng.random() < 0.5:
    store.remove(name)
    return f"removed {name}"
  content = bytearray(store.read(name))
  place = int(rng.integers(len(content)))
  content[place] ^= 1 << int(rng.integers(8))
  store.write(name, bytes(content))
  return f"{name} at {place}"


ON_DISK: Mapping[str, Injector] = {
  "kill trainer": _kill("trainer"),
  "kill builder": _kill("builder"),
  "kill both": _kill("trainer", "builder"),
  "late builder": _kill("builder", is_late=True),
  CRASH: _crash_search,
  CUT: _damage(_cut),
  "flip bit": _damage(_flip),
  "remove generation": _remove_one,
  "remove generations": _remove_all,
  _SECOND: _second_builder,
  "stop builder": _stop_builder,
  "full disk": _full_disk,
}
IN_BUCKET: Mapping[str, Injector] = {
  "kill process": _kill_process("trainer"),
  "kill builder": _kill_process("builder"),
  "kill all": _kill("trainer", "builder"),
  "stop builder": _stop_builder,
  "refuse requests": _bad_requests("refuse"),
  "lose answers": _bad_requests("lose answer"),
  "cut answers": _bad_requests("cut"),
  "hang requests": _bad_requests("hang"),
  "damage object": _damage_object,
}
