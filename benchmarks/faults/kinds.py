"""Kinds of faults: kills, damage, a full disk, bad requests to a bucket."""

import contextlib
import os
import resource
import signal
from collections.abc import Mapping

import numpy as np
from etils import epath

from benchmarks.faults.disturbed import CRASH, CUT, Disturbed, Injector
from benchmarks.runs.jobs import searching
from benchmarks.runs.object_store import StoreFault
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.storage.paths import sizes_below

# Target of a fault that found nothing to damage.
NOTHING = "nothing"
# What bad requests have in common, as regular expressions.
_REQUESTS = ("", "checkpoints", "generations", "metrics|lease")


def _kill(*names: str) -> Injector:
  """Returns a fault that kills all named jobs, then restarts them."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    for name in names:
      here.jobs[name].kill()
    for name in names:
      here.jobs[name].start()
    return " and ".join(names)

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


def _damage(kind: str) -> Injector:
  """Returns a fault that damages a file of a complete generation.

  Args:
    kind: CUT, "flip bit" or "remove generation". On a disk a file is changed in
      place, even if it is mapped.
  """

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    store = GenerationStore(directory_of(here.run.model_dir))
    try:
      folders = [store.path(step) for step in store.steps()]
      files = [f / name for f in folders for name in sorted(sizes_below(f))]
      if not files:
        return NOTHING
      path = files[rng.integers(len(files))]
      place = int(rng.integers(max(1, path.stat().length)))
      if kind == CUT:
        os.truncate(path, place)
      elif kind == "flip bit":
        _flip(path, place, 1 << int(rng.integers(8)))
      else:
        folders[-1].rmtree()
        return str(folders[-1])
    except FileNotFoundError:  # Another process removes the generation.
      return NOTHING
    return f"{path} at {place}"

  return inject


def _flip(path: epath.Path, place: int, bit: int) -> None:
  content = bytearray(path.read_bytes())
  if content:
    content[place] ^= bit
    if "://" in str(path):
      path.write_bytes(bytes(content))
    else:
      with open(path, "r+b") as file:
        file.write(content)


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


_EVERYWHERE: Mapping[str, Injector] = {
  "kill trainer": _kill("trainer"),
  "kill builder": _kill("builder"),
  "kill both": _kill("trainer", "builder"),
  "stop builder": _stop_builder,
  "flip bit": _damage("flip bit"),
  "remove generation": _damage("remove generation"),
}
ON_DISK: Mapping[str, Injector] = {
  **_EVERYWHERE,
  CRASH: _crash_search,
  CUT: _damage(CUT),
  "full disk": _full_disk,
}
IN_BUCKET: Mapping[str, Injector] = {
  **_EVERYWHERE,
  "refuse requests": _bad_requests("refuse"),
  "lose answers": _bad_requests("lose answer"),
  "cut answers": _bad_requests("cut"),
  "hang requests": _bad_requests("hang"),
}
