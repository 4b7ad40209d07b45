"""A run whose processes are restarted, and how each of them ended."""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator

from benchmarks.runs.jobs import Job, JobError, wait_until
from benchmarks.runs.pretraining import Run
from realm_jax.exit_codes import ExitCode

# Kinds of faults that may end a process.
CRASH = "crash search"
CUT = "cut file"
_DAMAGE = frozenset(
  {CUT, "flip bit", "remove generation", "remove generations"}
  | {"remove object", "change object"}
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
    trainer: Job that trains.
    builders: Jobs that build the index, by name.
    kinds: Kinds of the faults injected so far.
    lines: Last line of each process that ended by itself.
    problems: Ends of processes that no fault explains.
  """

  def __init__(self, run: Run):
    self.run = run
    self.trainer = run.trainer()
    self.builders = {"builder": run.builder()}
    self.kinds: set[str] = set()
    self.lines: list[str] = []
    self.problems: list[str] = []

  @property
  def jobs(self) -> dict[str, Job]:
    """All jobs, by name."""
    return {"trainer": self.trainer, **self.builders}

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

  def wait_seconds(self, seconds: float) -> None:
    """Waits for some time, or until the run ends."""
    end = time.monotonic() + seconds
    self.wait(lambda: time.monotonic() > end, what="passing of time")


@contextlib.contextmanager
def disturbed(run: Run) -> Iterator[Disturbed]:
  """Starts a run, and kills all of its processes when the block ends."""
  here = Disturbed(run)
  try:
    for job in here.jobs.values():
      job.start()
    yield here
  finally:
    for job in here.jobs.values():
      job.stop()
