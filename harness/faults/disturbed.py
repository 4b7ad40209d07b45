"""A run with faults injected into its processes.

Only the supervisors of trainer and builder restart processes, and nothing else
is repaired.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from harness.faults import verdict
from harness.jobs import JobError, wait_until
from harness.object_store import StoreFault
from harness.pretraining import Run
from realm_jax.snapshots.store import SnapshotStore, directory_of
from realm_jax.storage.paths import sizes_below

CRASH = "crash search"
# Timeout for the rest of a run after the last fault, on a busy machine.
_COMPLETION_TIMEOUT_SECONDS = 1800.0
# Target of a fault that found nothing to damage.
NOTHING = "nothing"
# Regular expressions for requests with faults.
_REQUESTS = ("", "checkpoints", "snapshots", "metrics|lease")


class Fault(NamedTuple):
  """A planned fault.

  Attributes:
    kind: Name of an injector in `ON_DISK` or `IN_BUCKET`.
    checkpoint: Step whose checkpoint must be saved first.
    delay_seconds: Delay after that checkpoint. It is cut short when the run
      saves the second checkpoint after it, since the run could otherwise end
      before the last faults.
    seed: Seed of other choices, such as the file, the byte or the duration.
  """

  kind: str
  checkpoint: int
  delay_seconds: float
  seed: int


class Disturbed:
  """A run, with trainer and builder active during a `with` block.

  Args:
    run: Run with an empty folder.

  Attributes:
    jobs: Supervised jobs by name, `trainer` and `builder`.
  """

  def __init__(self, run: Run):
    self.run = run
    self.jobs = {"trainer": run.trainer(), "builder": run.builder()}

  def __enter__(self) -> "Disturbed":
    for job in self.jobs.values():
      job.start()
    return self

  def __exit__(self, *exception: object) -> None:
    for job in self.jobs.values():
      job.kill()

  def is_over(self) -> bool:
    """Returns whether the trainer is done.

    Raises:
      JobError: A job has ended, for good, without being done.
    """
    for name, job in self.jobs.items():
      code = job.exit_code()
      if name == "trainer" and code == 0:
        return True
      if code is not None:
        raise JobError(f"the {name} ended with {code}:\n{job.tail()}")
    return False

  def worker(self, name: str) -> int:
    """Waits for the process that does a job's work, and returns it."""
    job, workers = self.jobs[name], list[int]()

    def has_one() -> bool:
      # Kept, because it may have ended when it is asked for again.
      workers.extend(filter(None, [job.worker()]))
      return bool(workers)

    self.wait(has_one)
    return workers[0] if workers else job.pid

  def wait(
    self, condition: Callable[[], bool], timeout_seconds: float = 600.0
  ) -> bool:
    """Waits for a condition; returns False if the run ends first."""
    wait_until(
      lambda: self.is_over() or condition(),
      what="end of training, or moment of a fault",
      timeout_seconds=timeout_seconds,
      poll_seconds=0.1,
    )
    return not self.is_over()

  def wait_seconds(self, seconds: float) -> None:
    """Waits for some seconds, or until the run ends."""
    end = time.monotonic() + seconds
    self.wait(lambda: time.monotonic() > end)

  def complete(self) -> None:
    """Waits until training ends, and terminates the builder.

    Raises:
      JobError: A job failed.
    """
    self.wait(lambda: False, _COMPLETION_TIMEOUT_SECONDS)
    # A builder that is still importing does not handle SIGTERM yet.
    code = self.jobs["builder"].terminate()
    if code not in (0, -signal.SIGTERM):
      raise JobError(f"the builder ended with {code}")

  def inject(self, fault: Fault) -> dict[str, Any] | None:
    """Waits for a fault's time and injects it.

    Returns:
      The fault and its target as `what`; None if the run ended first.

    Raises:
      JobError: A job has ended, for good, without being done.
    """
    run = self.run
    if not self.wait(lambda: run.last_checkpoint() >= fault.checkpoint):
      return None
    end = time.monotonic() + fault.delay_seconds
    latest = fault.checkpoint + 2 * run.save_every_steps
    if not self.wait(
      lambda: time.monotonic() > end or run.last_checkpoint() >= latest
    ):
      return None
    generator = np.random.default_rng(fault.seed)
    injectors = {**ON_DISK, **IN_BUCKET}
    what = injectors[fault.kind](self, generator)
    return {**fault._asdict(), "what": what}


# Injects a fault, with random choices, and returns its target.
Injector = Callable[[Disturbed, np.random.Generator], str]


def _kill(*names: str) -> Injector:
  """Returns a fault that kills the workers of all named jobs."""

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    for worker in [here.worker(name) for name in names]:
      with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    return " and ".join(names)

  return inject


def _stop_builder(here: Disturbed, rng: np.random.Generator) -> str:
  """Suspends the builder by SIGSTOP for some seconds."""
  seconds, worker = rng.uniform(1, 6), here.worker("builder")
  # An earlier fault may be about to end it.
  with contextlib.suppress(ProcessLookupError):
    os.kill(worker, signal.SIGSTOP)
    here.wait_seconds(seconds)
    os.kill(worker, signal.SIGCONT)
    return f"{seconds:.1f} s"
  return NOTHING


def _crash_search(here: Disturbed, rng: np.random.Generator) -> str:
  while not (searches := verdict.searching("", here.worker("trainer"))):
    here.wait_seconds(0.1)
    if here.is_over():
      return NOTHING
  number = rng.choice([signal.SIGKILL, signal.SIGSEGV])
  with contextlib.suppress(ProcessLookupError):
    os.kill(searches[0], number)
  return signal.Signals(number).name


def _damage(kind: str) -> Injector:
  """Returns a fault that damages a file of a complete snapshot.

  Args:
    kind: "cut file", "flip bit" or "remove snapshot". On a disk, files are
      changed in place, even if they are mapped.
  """

  def inject(here: Disturbed, rng: np.random.Generator) -> str:
    store = SnapshotStore(directory_of(here.run.model_dir))
    try:
      folders = [store.path(step) for step in store.steps()]
      files = [f / name for f in folders for name in sorted(sizes_below(f))]
      if not files:
        return NOTHING
      path = files[rng.integers(len(files))]
      place = int(rng.integers(max(1, path.stat().length)))
      if kind == "cut file":
        os.truncate(path, place)
      elif kind == "flip bit":
        _flip(path, place, 1 << int(rng.integers(8)))
      else:
        folders[-1].rmtree()
        return str(folders[-1])
    except FileNotFoundError:  # Another process removes the snapshot.
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
  # With a limit on file sizes, writes fail as on a full disk. This needs no
  # privileges.
  limit, seconds = int(10 ** rng.uniform(1, 5)), rng.uniform(0.5, 4)
  worker, kind = here.worker("builder"), resource.RLIMIT_FSIZE
  _, hard = resource.prlimit(worker, kind)
  resource.prlimit(worker, kind, (limit, hard))
  here.wait_seconds(seconds)
  # It may have ended, and its successor has no limit.
  with contextlib.suppress(ProcessLookupError):
    resource.prlimit(worker, kind, (hard, hard))
  return f"files above {limit} bytes, {seconds:.1f} s"


def _bad_requests(kind: str) -> Injector:
  """Returns a fault of the object store that lasts for some seconds."""

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
  "remove snapshot": _damage("remove snapshot"),
}
ON_DISK: Mapping[str, Injector] = {
  **_EVERYWHERE,
  CRASH: _crash_search,
  "cut file": _damage("cut file"),
  "full disk": _full_disk,
}
IN_BUCKET: Mapping[str, Injector] = {
  **_EVERYWHERE,
  "refuse requests": _bad_requests("refuse"),
  "lose answers": _bad_requests("lose answer"),
  "cut answers": _bad_requests("cut"),
  "hang requests": _bad_requests("hang"),
}


def finish(run: Run, planned: Sequence[Fault] = ()) -> dict[str, Any]:
  """Runs trainer and builder to the end while faults are injected.

  Args:
    run: Run with an empty folder.
    planned: Faults in order; it is a problem if the run ends before the last
      one.

  Returns:
    The injected `faults`; the supervisors' lines about `restarts` of each job;
    and `problems`, which should not have happened.
  """
  faults: list[dict[str, Any]] = []
  problems: list[str] = []
  with Disturbed(run) as here:
    try:
      for fault in planned:
        met = here.inject(fault)
        if met is None:
          left = len(planned) - len(faults)
          problems.append(f"the run ended before {left} faults")
          break
        faults.append(met)
        print(f"{len(faults):4} {fault.kind}: {met['what']}", flush=True)
      here.complete()
      problems += verdict.problems(run)
    except JobError as error:
      problems.append(str(error))
  restarts = {name: verdict.restarts(job) for name, job in here.jobs.items()}
  return {"faults": faults, "restarts": restarts, "problems": problems}
