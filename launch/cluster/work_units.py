"""Work units of XManager on Cloud, watched until the run has ended."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from launch.jobs import Job, Schedule

_POLL_SECONDS = 30.0
_MAX_ERRORS = 20
_ENDED = frozenset({"COMPLETED", "FAILED", "STOPPED"})
_WRONG = frozenset({"FAILED", "PARTIALLY_FAILED", "STOPPED"})


@dataclasses.dataclass(frozen=True)
class UnitStatus:
  """State of a work unit.

  Attributes:
    jobs: Names of its jobs.
    state: XManager's name of the state, such as `RUNNING` or `FAILED`.
    failed: Names of the jobs of which a process has failed.
  """

  jobs: tuple[str, ...]
  state: str
  failed: tuple[str, ...] = ()

  def __str__(self) -> str:
    failed = f" (failed: {', '.join(self.failed)})" if self.failed else ""
    return f"{', '.join(self.jobs)}: {self.state}{failed}"


@runtime_checkable
class Experiment(Protocol):
  """What is watched."""

  @property
  def name(self) -> str:
    """Name by which the commands of XManager know it."""
    ...

  def statuses(self) -> list[UnitStatus]:
    """Returns the state of each work unit."""
    ...

  def stop(self) -> None:
    """Stops all work units."""


def divide(jobs: Sequence[Job]) -> list[list[Job]]:
  """Returns the jobs of each work unit, the trainer's first.

  A job that would go on after the trainer has a unit of its own, so that the
  trainer's unit can be complete without it.
  """
  run = [job for job in jobs if job.schedule is not Schedule.BESIDE]
  beside = [[job] for job in jobs if job.schedule is Schedule.BESIDE]
  return [run, *beside]


def watch(
  experiment: Experiment, *, poll_seconds: float = _POLL_SECONDS
) -> int:
  """Reports changes until the run has ended, and then stops what goes on.

  The run has ended when the trainer's unit has, or when the builder has failed
  more often than it may be restarted. While an experiment cannot be asked,
  because the network is down, it is assumed to go on.

  Returns:
    0 if the run is complete, otherwise 1.
  """
  seen: list[UnitStatus] = []
  errors = 0
  while True:
    try:
      statuses = experiment.statuses()
      errors = 0
    # XManager raises errors of gRPC, of authentication and of the network.
    except Exception as error:
      errors += 1
      if errors == _MAX_ERRORS:
        raise
      print(f"{experiment.name} does not answer: {error}", flush=True)
      time.sleep(poll_seconds)
      continue
    for status in statuses:
      if status not in seen:
        print(status, flush=True)
    seen = statuses
    over = [status for status in statuses if _ends_run(status)]
    if over:
      if any(status.state not in _ENDED for status in statuses):
        print(f"stopping what still runs of {experiment.name}", flush=True)
        experiment.stop()
      return int(any(status.state in _WRONG for status in over))
    time.sleep(poll_seconds)


def _ends_run(status: UnitStatus) -> bool:
  if "trainer" in status.jobs:
    return status.state in _ENDED
  return "builder" in status.jobs and status.state == "FAILED"
