"""Processes of which none goes on without the others."""

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs.jobs import Job, free_port, wait_until

# After this many seconds without a sign of life a process is taken for dead.
_HEARTBEAT_TIMEOUT_SECONDS = 10
# jax ends a process within its heartbeat timeout after another one was killed.
_END_SECONDS = 60.0
# What a process logs once it has met the others.
_CONNECTED = "[Gloo] Rank"


class JobGroup:
  """Processes that are started together, and again when all have ended.

  Args:
    name: Name for messages.
    jobs: The processes, whose commands take the flags of several processes.
  """

  def __init__(self, name: str, jobs: Sequence[Job]):
    self.name = name
    self.started_at = 0.0
    self._jobs = jobs
    # The process that says most of how the group has ended.
    self._speaker = jobs[0]

  @property
  def log(self) -> Path:
    """Log of the first process."""
    return self._jobs[0].log

  @property
  def pid(self) -> int:
    """Id of the first process."""
    return self._jobs[0].pid

  def start(self) -> None:
    """Starts or restarts all processes."""
    self._speaker = self._jobs[0]
    self.started_at = time.monotonic()
    port = free_port()
    for number, job in enumerate(self._jobs):
      job.start(
        f"--coordinator_address=localhost:{port}",
        f"--num_processes={len(self._jobs)}",
        f"--process_id={number}",
        f"--heartbeat_timeout_seconds={_HEARTBEAT_TIMEOUT_SECONDS}",
      )

  def exit_code(self) -> int | None:
    """Returns the exit status of the group; None while one process runs.

    It is that of a process that has failed by itself, if any has. jax ends the
    others with a signal.
    """
    codes = [job.exit_code() for job in self._jobs]
    if None in codes:
      return None
    # Status 2 first, then other failures.
    worst = max(range(len(codes)), key=lambda i: (codes[i] == 2, codes[i] != 0))
    self._speaker = self._jobs[worst]
    return codes[worst]

  def kill_one(self, number: int) -> float:
    """Kills one process; returns the seconds until the others have ended.

    Those that have not met it yet would wait for it, and are killed, too.

    Raises:
      JobError: One that has met it still runs after a minute.
    """
    began = time.monotonic()
    others = [job for i, job in enumerate(self._jobs) if i != number]
    waiting = [job for job in others if _CONNECTED not in job.last_output()]
    for job in (self._jobs[number], *waiting):
      job.kill()
    self._wait([job for job in others if job not in waiting])
    return time.monotonic() - began

  def _wait(self, jobs: Sequence[Job]) -> list[int]:
    """Waits for the end of some processes; returns their exit statuses."""
    wait_until(
      lambda: all(job.exit_code() is not None for job in jobs),
      what=f"end of the {self.name}",
      timeout_seconds=_END_SECONDS,
    )
    codes = [job.exit_code() or 0 for job in jobs]
    for job in jobs:
      job.close()
    return codes

  def kill(self) -> None:
    """Kills all processes."""
    for job in self._jobs:
      job.stop()

  stop = kill

  def close(self) -> None:
    """Waits for all processes to end, and for their last output."""
    for job in self._jobs:
      job.close()

  def terminate(self) -> int:
    """Sends SIGTERM to the first process; returns the exit status of the group.

    Raises:
      JobError: A process did not stop.
    """
    codes = [self._jobs[0].terminate(), *self._wait(self._jobs[1:])]
    return next(filter(None, codes), 0)

  def last_output(self) -> str:
    """Returns what the process that failed has logged since its start."""
    return self._speaker.last_output()

  def tail(self) -> str:
    """Returns the end of the log of the process that failed."""
    return self._speaker.tail()
