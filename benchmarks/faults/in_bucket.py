"""Faults of a run in a bucket: kills, bad requests, bad objects."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from benchmarks.faults.disturbed import Disturbed
from benchmarks.faults.injection import NOTHING, Injector
from benchmarks.faults.on_disk import kill, stop_builder
from benchmarks.runs.object_store import ObjectStore, StoreFault

# What bad requests have in common, as regular expressions.
_REQUESTS = ("", "checkpoints", "generations", "metrics|lease")
_HANG_SECONDS = 8.0


def _store(here: Disturbed) -> ObjectStore:
  assert here.run.store is not None
  return here.run.store


def _kill_one(name: str) -> Injector:
  """Returns a fault that kills one process; all of the job start again."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    job = here.jobs[name]
    number = int(rng.integers(here.run.num_processes))
    seconds = job.kill_one(number)
    job.start()
    return f"process {number}; the other ended after {seconds:.1f} s"

  return inject


def _bad_requests(
  kind: Literal["refuse", "lose answer", "cut", "hang"],
) -> Injector:
  """Returns a fault that lasts for some seconds."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    store, seconds = _store(here), rng.uniform(1, 6)
    match = str(rng.choice(_REQUESTS))
    fault = StoreFault(kind, match, times=1_000_000, seconds=_HANG_SECONDS)
    store.inject(fault)
    here.wait_seconds(seconds)
    (count,) = store.happened()
    store.inject()
    return f"{count} requests of {match or 'any kind'} in {seconds:.1f} s"

  return inject


def _remove_object(here: Disturbed, rng: np.random.Generator) -> str:
  files = here.run.published_objects()
  if not files:
    return NOTHING
  name = str(rng.choice(files))
  _store(here).remove(f"{here.run.prefix}/{name}")
  return name


def _change_object(here: Disturbed, rng: np.random.Generator) -> str:
  files = here.run.published_objects()
  if not files:
    return NOTHING
  name = f"{here.run.prefix}/{rng.choice(files)}"
  content = bytearray(_store(here).read(name))
  place = int(rng.integers(len(content)))
  content[place] ^= 1 << int(rng.integers(8))
  _store(here).write(name, bytes(content))
  return f"{name} at {place}"


KINDS: Mapping[str, Injector] = {
  "kill process": _kill_one("trainer"),
  "kill builder": _kill_one("builder"),
  "kill all": kill("trainer", "builder"),
  "stop builder": stop_builder,
  "refuse requests": _bad_requests("refuse"),
  "lose answers": _bad_requests("lose answer"),
  "cut answers": _bad_requests("cut"),
  "hang requests": _bad_requests("hang"),
  "remove object": _remove_object,
  "change object": _change_object,
}
