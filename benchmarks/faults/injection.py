"""Random faults, injected into a run after given checkpoints.

The run's trainer and builders are processes. A process that ends after a fault
is restarted, and nothing else is repaired.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.faults.disturbed import Disturbed

# Injects a fault, with random choices, and returns its target.
Injector = Callable[[Disturbed, np.random.Generator], str]
# Target of a fault that found nothing to damage.
NOTHING = "nothing"
# A fault is injected at most this many checkpoints after its own.
_LATEST_CHECKPOINTS = 2
# Checkpoints at the end without faults, so that no fault comes too late.
QUIET_CHECKPOINTS = 8


@dataclasses.dataclass(frozen=True)
class Fault:
  """A planned fault.

  Attributes:
    kind: Name of one of the injectors.
    checkpoint: Step whose checkpoint must be saved first.
    delay_seconds: Delay after that checkpoint; shorter if the run saves two
      more checkpoints first.
    seed: Seed of the other choices: which file, which byte, how long.
  """

  kind: str
  checkpoint: int
  delay_seconds: float
  seed: int


@dataclasses.dataclass
class InjectedFault:
  """An injected fault, and what it met.

  Attributes:
    fault: The planned fault.
    what: Target of the fault.
    checkpoint: Step of the last checkpoint.
    generation: Step of the last published generation.
    half_written: Checkpoints and generations that were being written.
  """

  fault: Fault
  what: str
  checkpoint: int
  generation: int
  half_written: list[str]


def draw_faults(
  count: int,
  *,
  kinds: Sequence[str],
  num_steps: int,
  save_every_steps: int,
  cycle_seconds: float,
  seed: int,
) -> list[Fault]:
  """Draws random faults, equally many of each kind, spread over a run.

  Three in four come at a random time within two cycles after a random
  checkpoint (a cycle is save, embed, publish, load and the steps between
  checkpoints). The others come soon after the previous fault, while processes
  are starting. The last checkpoints have no faults.
  """
  rng = np.random.default_rng(seed)
  limit = num_steps - QUIET_CHECKPOINTS * save_every_steps
  steps = np.sort(rng.integers(0, limit, count)).tolist()
  drawn_kinds = rng.permutation(np.resize(kinds, count)).tolist()
  drawn = []
  for step, kind in zip(steps, drawn_kinds, strict=True):
    checkpoint, delay = step, rng.uniform(0, 2 * cycle_seconds)
    if drawn and rng.random() < 0.25:
      checkpoint, delay = drawn[-1].checkpoint, rng.uniform(0, 5)
    drawn.append(Fault(kind, checkpoint, delay, int(rng.integers(1 << 31))))
  return drawn


def inject(
  here: Disturbed, fault: Fault, injectors: Mapping[str, Injector]
) -> InjectedFault | None:
  """Waits for a fault's time and injects it; None if the run ended first.

  Raises:
    JobError: A process ended without a line that explains it.
  """
  run = here.run
  what = f"checkpoint {fault.checkpoint}"
  if not here.wait(
    lambda: run.last_checkpoint() >= fault.checkpoint, what=what
  ):
    return None
  # Otherwise a fast run would end before the last faults.
  end = time.monotonic() + fault.delay_seconds
  latest = fault.checkpoint + _LATEST_CHECKPOINTS * run.save_every_steps
  if not here.wait(
    lambda: time.monotonic() > end or run.last_checkpoint() >= latest,
    what="passing of time",
  ):
    return None
  met = InjectedFault(
    fault,
    what="",
    checkpoint=run.last_checkpoint(),
    generation=run.last_generation(),
    half_written=run.half_written(),
  )
  here.kinds.add(fault.kind)
  met.what = injectors[fault.kind](here, np.random.default_rng(fault.seed))
  return met
