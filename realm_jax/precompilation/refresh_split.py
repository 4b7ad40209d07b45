"""How fast a number of builder chips refreshes the index of a trainer."""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class RefreshSplit:
  """A split of chips between the trainer and the builder.

  Attributes:
    builder_chips: Chips that embed the corpus.
    seconds: Time that they take for a generation.
    trainer_steps: Steps between two generations. A generation is built of the
      newest checkpoint, so there are never fewer than between checkpoints.
  """

  builder_chips: int
  seconds: float
  trainer_steps: int

  @property
  def staleness_steps(self) -> int:
    """Age of the vectors just before the next generation replaces them."""
    return 2 * self.trainer_steps


def split(
  builder_chips: int,
  *,
  chip_seconds: float,
  step_seconds: float,
  save_every_steps: int,
) -> RefreshSplit:
  """Returns what a number of builder chips gives.

  Args:
    builder_chips: Number of chips, 1 or more.
    chip_seconds: Time that one chip takes to embed the corpus.
    step_seconds: Time of a training step.
    save_every_steps: Steps between checkpoints.
  """
  seconds = chip_seconds / builder_chips
  steps = math.ceil(seconds / step_seconds)
  return RefreshSplit(builder_chips, seconds, max(steps, save_every_steps))


def chips_for(
  trainer_steps: int, *, chip_seconds: float, step_seconds: float
) -> int:
  """Returns how many chips build a generation in a number of steps."""
  return max(1, math.ceil(chip_seconds / (trainer_steps * step_seconds)))


def chip_seconds(
  batches: Sequence[tuple[float, float]], *, chips_per_batch: int
) -> float:
  """Returns the time in which one chip would embed the corpus.

  Args:
    batches: Number and time of the batches of each length.
    chips_per_batch: Chips that share a batch.
  """
  return chips_per_batch * sum(count * seconds for count, seconds in batches)
