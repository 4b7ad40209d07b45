"""A run whose processes are restarted, and into which faults are injected.

A process that ends after a fault is restarted, and nothing else is repaired.
"""

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.faults import verdict
from benchmarks.runs.jobs import JobError, wait_until
from benchmarks.runs.pretraining import Run
from realm_jax.exit_codes import ExitCode

# Kinds of faults that may end a process.
CRASH, CUT = "crash search", "cut file"
_DAMAGE = {CUT, "flip bit", "remove generation"}
# Time limit for the rest of a run after the last fault, on a busy machine.
_COMPLETION_TIMEOUT_SECONDS = 1800.0
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


class Fault(NamedTuple):
  """A planned fault.

  Attributes:
    kind: Name of one of the injectors.
    checkpoint: Step whose checkpoint must be saved first.
    delay_seconds: Delay after that checkpoint; shorter if the run saves the
      second checkpoint after it first, since it would end before the last
      faults otherwise.
    seed: Seed of the other choices: which file, which byte, how long.
  """

  kind: str
  checkpoint: int
  delay_seconds: float
  seed: int


class Disturbed:
  """A run whose processes are restarted whenever they end.

  They run while a `with` block does.

  Args:
    run: Run with an empty folder.

  Attributes:
    jobs: Jobs by name, `trainer` and `builder`.
    kinds: Kinds of the faults injected so far.
    lines: Last line of each process that ended by itself.
    problems: Ends of processes that no fault explains.
  """

  def __init__(self, run: Run):
    self.run = run
    self.jobs = {"trainer": run.trainer(), "builder": run.builder()}
    self.kinds: set[str] = set()
    self.lines: list[str] = []
    self.problems: list[str] = []

  def __enter__(self) -> "Disturbed":
    for job in self.jobs.values():
      job.start()
    return self

  def __exit__(self, *exception: object) -> None:
    for job in self.jobs.values():
      job.kill()

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
      job.wait()
      self._note_end(name, code)
      job.start()
    return False

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
    """Waits, and restarts processes that end meanwhile."""
    end = time.monotonic() + seconds
    self.wait(lambda: time.monotonic() > end)

  def complete(self) -> None:
    """Waits for the end of training, and terminates the builder.

    Raises:
      JobError: A job failed.
    """
    self.wait(lambda: False, _COMPLETION_TIMEOUT_SECONDS)
    # A builder that is still importing does not handle SIGTERM yet.
    code = self.jobs["builder"].terminate()
    if code not in (0, -signal.SIGTERM):
      self._note_end("builder", code)

  def inject(
    self, fault: Fault, injectors: "Mapping[str, Injector]"
  ) -> dict[str, Any] | None:
    """Waits for a fault's time and injects it.

    Returns:
      The fault and `what` it met; None if the run ended first.

    Raises:
      JobError: A process ended without a line that explains it.
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
    self.kinds.add(fault.kind)
    generator = np.random.default_rng(fault.seed)
    what = injectors[fault.kind](self, generator)
    return {**fault._asdict(), "what": what}

  def _note_end(self, name: str, code: int) -> None:
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
      raise JobError(f"the {name} ended with {code}:\n{output[-2000:]}")
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


# Injects a fault, with random choices, and returns its target.
Injector = Callable[[Disturbed, np.random.Generator], str]


def finish(
  run: Run,
  planned: Sequence[Fault] = (),
  injectors: Mapping[str, Injector] | None = None,
) -> dict[str, Any]:
  """Runs trainer and builder to the end while faults are injected.

  Args:
    run: Run with an empty folder.
    planned: Faults in order; it is a problem if the run ends before the last.
    injectors: What injects a fault, by its kind.

  Returns:
    The injected `faults`; the last lines of processes that `stopped` by
    themselves; and `problems`, which should not have happened.
  """
  faults: list[dict[str, Any]] = []
  with Disturbed(run) as here:
    try:
      for fault in planned:
        met = here.inject(fault, injectors or {})
        if met is None:
          left = len(planned) - len(faults)
          here.problems.append(f"the run ended before {left} faults")
          break
        faults.append(met)
        print(f"{len(faults):4} {fault.kind}: {met['what']}", flush=True)
      here.complete()
      here.problems += verdict.problems(run)
    except JobError as error:
      here.problems.append(str(error))
  return {"faults": faults, "stopped": here.lines, "problems": here.problems}
