"""Faults of a run in a bucket: kills, bad requests, bad objects."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from benchmarks.faults.disturbed import CHANGE, REMOVE, Disturbed
from benchmarks.faults.injection import NOTHING, Injector, stop_for_seconds
from benchmarks.runs.job_group import JobGroup
from benchmarks.runs.object_store import StoreFault
from benchmarks.runs.pretraining import BucketRun

# What bad requests have in common, as regular expressions.
_REQUESTS = ("", "checkpoints", "generations", "metrics|lease")
_HANG_SECONDS = 8.0


def _run(here: Disturbed) -> BucketRun:
  assert isinstance(here.run, BucketRun)
  return here.run


def _kill_process(name: str) -> Injector:
  """Returns a fault that kills one process; all of the group start again."""

  def kill(here: Disturbed, rng: np.random.Generator) -> str:
    group = here.jobs[name]
    assert isinstance(group, JobGroup)
    process = int(rng.integers(_run(here).num_processes))
    seconds = group.kill_one(process)
    group.start()
    return f"process {process}; the other ended after {seconds:.1f} s"

  return kill


def _kill_all(here: Disturbed, rng: np.random.Generator) -> str:
  del rng
  here.restart(*here.jobs)
  return "all processes"


def _stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  seconds = rng.uniform(1, 6)
  stop_for_seconds(here, "builder", seconds)
  return f"{seconds:.1f} s"


def _bad_requests(
  kind: Literal["refuse", "lose answer", "cut", "hang"], **settings: Any
) -> Injector:
  """Returns a fault that lasts for some seconds."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    store, seconds = _run(here).store, rng.uniform(1, 6)
    match = str(rng.choice(_REQUESTS))
    store.inject(StoreFault(kind, match, times=1_000_000, **settings))
    here.wait_seconds(seconds)
    (count,) = store.happened()
    store.inject()
    return f"{count} requests of {match or 'any kind'} in {seconds:.1f} s"

  return inject


def _some_object(here: Disturbed, rng: np.random.Generator) -> str | None:
  """Returns the name of an object of a published generation, if any."""
  names = _run(here).published_objects()
  return str(rng.choice(names)) if names else None


def _remove_object(here: Disturbed, rng: np.random.Generator) -> str:
  name = _some_object(here, rng)
  if name is None:
    return NOTHING
  _run(here).store.remove(name)
  return name


def _change_object(here: Disturbed, rng: np.random.Generator) -> str:
  name = _some_object(here, rng)
  if name is None:
    return NOTHING
  store = _run(here).store
  content = bytearray(store.read(name))
  place = int(rng.integers(len(content)))
  content[place] ^= 1 << int(rng.integers(8))
  store.write(name, bytes(content))
  return f"{name} at {place}"


KINDS: Mapping[str, Injector] = {
  "kill process": _kill_process("trainer"),
  "kill builder": _kill_process("builder"),
  "kill all": _kill_all,
  "stop builder": _stop_builder,
  "refuse requests": _bad_requests("refuse"),
  "lose answers": _bad_requests("lose answer"),
  "cut answers": _bad_requests("cut"),
  "hang requests": _bad_requests("hang", seconds=_HANG_SECONDS),
  REMOVE: _remove_object,
  CHANGE: _change_object,
}
