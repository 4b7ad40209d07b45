"""A run whose processes are restarted, and how each of them ended."""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator

from benchmarks.runs.job_group import JobGroup
from benchmarks.runs.jobs import Job, JobError, wait_until
from benchmarks.runs.pretraining import Run
from realm_jax.exit_codes import ExitCode

# Kinds of faults that may end a process.
CRASH = "crash search"
CUT = "cut file"
REMOVE, CHANGE = "remove object", "change object"
_DAMAGE = frozenset(
  {CUT, "flip bit", "remove generation", "remove generations", REMOVE, CHANGE}
)
# Time between two looks at the processes and at what they have written.
_LOOK_SECONDS = 0.1
# What a process exits with whose last line says why.
_SAID = (ExitCode.USER_ERROR, ExitCode.LOST_ROLE)
_TRACEBACK = "Traceback (most recent call last)"
# Line in which a command says why it stops. Its children may log more later.
_LAST_WORDS = re.compile(r"^(?:train|build_index): .*", re.MULTILINE)
# A trainer may exit if the generation of its checkpoint is damaged and it has
# loaded none yet, …
_DAMAGED = re.compile(r"make it again|is damaged")
_LOADED = "is verified and loaded"
# … or if its search crashed and every generation it could use is damaged.
_NOTHING_LEFT = "no generation is left"


class Disturbed:
  """A run whose processes are restarted whenever they end.

  Args:
    run: Run with an empty folder.

  Attributes:
    trainer: Process that trains, or processes.
    builders: Processes that build the index, by name; `second builder` only
      while there is one.
    kinds: Kinds of the faults injected so far.
    lines: Last line of each process that ended by itself.
    problems: Ends of processes that no fault explains.
  """

  def __init__(self, run: Run):
    self.run = run
    self.trainer: Job | JobGroup = run.trainer()
    self.builders = run.builders()
    self.kinds: set[str] = set()
    self.lines: list[str] = []
    self.problems: list[str] = []
    self._second = run.builder("second builder")

  @property
  def jobs(self) -> dict[str, Job | JobGroup]:
    """All processes, by name."""
    return {"trainer": self.trainer, **self.builders}

  def start(self) -> None:
    """Starts the trainer and the builders."""
    for job in self.jobs.values():
      job.start()

  def stop(self) -> None:
    """Kills all processes."""
    for job in self.jobs.values():
      job.stop()

  def is_over(self) -> bool:
    """Restarts processes that failed; returns whether the trainer is done.

    Raises:
      JobError: A process ended without a line that explains it.
    """
    for name, job in self.jobs.items():
      code = job.exit_code()
      if code is None:
        continue
      if name == "trainer" and code == 0:
        return True
      job.close()
      self.note_end(name, code)
      job.start()
    return False

  def note_end(self, name: str, code: int) -> None:
    """Records a process that ended by itself, and whether a fault explains it.

    Raises:
      JobError: It ended without a line that explains it.
    """
    output = self.jobs[name].last_output()
    if code == -signal.SIGBUS:
      # A file that it had mapped was truncated.
      line = "ended by SIGBUS"
      is_explained = CUT in self.kinds
    elif code in _SAID and self.kinds and _TRACEBACK not in output:
      words = _LAST_WORDS.findall(output) or output.strip().splitlines()
      line = words[-1]
      is_explained = name != "trainer" or self._may_stop(output, line)
    else:
      raise JobError(f"the {name} ended with {code}:\n{self.jobs[name].tail()}")
    self.lines.append(f"{name}: {line}")
    if not is_explained:
      self.problems.append(f"the {name} should not have stopped: {line}")

  def _may_stop(self, output: str, line: str) -> bool:
    """Whether damage explains that a trainer stopped."""
    if not self.kinds & _DAMAGE:
      return False
    if CRASH in self.kinds and _NOTHING_LEFT in line:
      return True
    return bool(_DAMAGED.search(line)) and _LOADED not in output

  def wait(self, condition: Callable[[], bool], *, what: str) -> bool:
    """Waits, restarting processes; returns False if the run ended first."""
    wait_until(
      lambda: self.is_over() or condition(),
      what=what,
      poll_seconds=_LOOK_SECONDS,
    )
    return not self.is_over()

  def wait_seconds(self, seconds: float) -> bool:
    """Waits for some time; returns False if the run ended first."""
    end = time.monotonic() + seconds
    return self.wait(lambda: time.monotonic() > end, what="passing of time")

  def restart(self, *names: str) -> None:
    """Kills all named processes, then restarts them."""
    jobs = [self.jobs[name] for name in names]
    for job in jobs:
      job.kill()
    for job in jobs:
      job.start()

  def toggle_second_builder(self) -> str:
    """Starts a second builder, or kills it if there is one."""
    if self.builders.pop(self._second.name, None) is not None:
      self._second.kill()
      return "killed"
    self._second.start()
    self.builders[self._second.name] = self._second
    return "joined"


@contextlib.contextmanager
def disturbed(run: Run) -> Iterator[Disturbed]:
  """Starts a run, and kills all of its processes when the block ends."""
  here = Disturbed(run)
  try:
    here.start()
    yield here
  finally:
    here.stop()
