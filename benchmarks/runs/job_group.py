"""Processes of which none goes on without the others."""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.runs.jobs import Job, wait_until

# jax ends a process within its heartbeat timeout after another one was killed.
_END_SECONDS = 60.0
# What a process logs once it has met the others.
_CONNECTED = "[Gloo] Rank"


class JobGroup:
  """Processes that are started together, and again when all have ended.

  Args:
    name: Name for messages.
    make_jobs: Function that returns the processes, which may need another port
      whenever they start.
  """

  def __init__(self, name: str, make_jobs: Callable[[], list[Job]]):
    self.name = name
    self.started_at = 0.0
    self._make_jobs = make_jobs
    self._jobs = make_jobs()
    # The process that says most of how the group has ended.
    self._speaker = 0

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
    self._jobs = self._make_jobs()
    self._speaker = 0
    self.started_at = time.monotonic()
    for job in self._jobs:
      job.start()

  def exit_code(self) -> int | None:
    """Returns the exit status of the group; None while one process runs.

    It is that of a process that has failed by itself, if any has. jax ends the
    others with a signal.
    """
    codes = [job.exit_code() for job in self._jobs]
    if None in codes:
      return None
    failed = [i for i, code in enumerate(codes) if code]
    by_themselves = [i for i in failed if codes[i] == 2]
    self._speaker = ([*by_themselves, *failed, 0])[0]
    return codes[self._speaker]

  def kill_one(self, process: int) -> float:
    """Kills one process; returns the seconds until the others have ended.

    Those that have not met it yet would wait for it, and are killed, too.

    Raises:
      JobError: One that has met it still runs after a minute.
    """
    began = time.monotonic()
    others = [job for i, job in enumerate(self._jobs) if i != process]
    waiting = [job for job in others if _CONNECTED not in job.last_output()]
    self._jobs[process].kill()
    for job in waiting:
      job.kill()
    ending = [job for job in others if job not in waiting]
    wait_until(
      lambda: all(job.exit_code() is not None for job in ending),
      what=f"end of the {self.name} whose process {process} was killed",
      timeout_seconds=_END_SECONDS,
    )
    for job in ending:
      job.close()
    return time.monotonic() - began

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
    codes = [self._jobs[0].terminate()]
    others = self._jobs[1:]
    wait_until(
      lambda: all(job.exit_code() is not None for job in others),
      what=f"end of the {self.name}",
      timeout_seconds=_END_SECONDS,
    )
    for job in others:
      codes.append(job.exit_code() or 0)
      job.close()
    return next((code for code in codes if code), 0)

  def last_output(self) -> str:
    """Returns what the process that failed has logged since its start."""
    return self._jobs[self._speaker].last_output()

  def tail(self) -> str:
    """Returns the end of the log of the process that failed."""
    return self._jobs[self._speaker].tail()
