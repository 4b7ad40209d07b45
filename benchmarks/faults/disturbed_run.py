"""A run from its start to its end, while faults are injected."""

import dataclasses
import signal
from collections.abc import Mapping, Sequence

from benchmarks.faults import verdict
from benchmarks.faults.disturbed import Disturbed, disturbed
from benchmarks.faults.injection import Fault, InjectedFault, Injector, inject
from benchmarks.runs.jobs import JobError, wait_until
from benchmarks.runs.pretraining import Run

# Time limit for the rest of a run after the last fault, on a busy machine.
_COMPLETION_TIMEOUT_SECONDS = 1800.0


def complete(here: Disturbed) -> None:
  """Waits for the end of training, and terminates the builders.

  Raises:
    JobError: A job failed.
  """
  wait_until(
    here.is_over,
    what="end of training",
    timeout_seconds=_COMPLETION_TIMEOUT_SECONDS,
  )
  for name, job in here.builders.items():
    # A builder that is still importing does not handle SIGTERM yet.
    if (code := job.terminate()) not in (0, -signal.SIGTERM):
      here.note_end(name, code)


@dataclasses.dataclass
class Outcome:
  """Result of a run.

  Attributes:
    faults: Injected faults, in order.
    stopped_with: Last line of each process that ended by itself.
    problems: Events that should not have happened.
    is_through: Whether the run was completed.
  """

  faults: list[InjectedFault] = dataclasses.field(default_factory=list)
  stopped_with: list[str] = dataclasses.field(default_factory=list)
  problems: list[str] = dataclasses.field(default_factory=list)
  is_through: bool = False


def finish(
  run: Run,
  planned: Sequence[Fault] = (),
  injectors: Mapping[str, Injector] | None = None,
) -> Outcome:
  """Runs trainer and builder to the end while faults are injected.

  Args:
    run: Run with an empty folder.
    planned: Faults in order; it is a problem if the run ends before the last.
    injectors: What injects a fault, by its kind.
  """
  outcome = Outcome()
  with disturbed(run) as here:
    try:
      for fault in planned:
        met = inject(here, fault, injectors or {})
        if met is None:
          break
        outcome.faults.append(met)
        count = len(outcome.faults)
        print(f"{count:4} {fault.kind}: {met.what}", flush=True)
      complete(here)
      outcome.is_through = True
    except JobError as error:
      outcome.problems.append(str(error))
    outcome.stopped_with = here.lines
    outcome.problems += here.problems
  if outcome.is_through:
    outcome.problems += verdict.problems(run)
    if left := len(planned) - len(outcome.faults):
      outcome.problems.append(f"the run ended before {left} faults")
  return outcome
