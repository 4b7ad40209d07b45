"""What share of a run's wall time its steps had, and what the rest was.

Goodput is that share. A run that was killed and started again adds up over its
lives: each row of its metrics has the sums until then, from which the next life
goes on. What a life has spent after its last checkpoint is lost, since its
steps are done twice; it is known as far as rows were written before the kill,
on a disk all of them, in a bucket those before the last checkpoint.
The time between two lives is in no sum.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal, get_args

from etils import epath

from realm_jax.training.metric_rows import read_rows

# Whatever is none of these is time for steps.
Spent = Literal["start_up", "compiling", "waiting", "saving", "repeated"]


class Goodput:
  """Adds up what one process spends its time on, in one thread.

  All time until `started` that is not measured as something else is start-up.

  Args:
    clock: Clock, in seconds.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._began = clock()
    # Wall time of earlier lives, and what this one has measured.
    self._earlier = self._measured = 0.0
    self._spent: dict[Spent, float] = dict.fromkeys(get_args(Spent), 0.0)

  def resume(self, model_dir: epath.PathLike, step: int) -> None:
    """Goes on from the rows of earlier lives, of which `step` steps are kept.

    It has to come before the rows of later steps are removed.
    """
    rows = read_rows(model_dir)
    if not rows:
      return
    kept = [row for row in rows if row["step"] <= step]
    sums = kept[-1] if kept else {}
    for name in self._spent:
      self._spent[name] += sums.get(f"{name}_seconds", 0.0)
    self._earlier = rows[-1].get("wall_seconds", 0.0)
    self._spent["repeated"] += self._earlier - sums.get("wall_seconds", 0.0)

  def started(self) -> None:
    """Ends the start-up."""
    self._spent["start_up"] += self._clock() - self._began - self._measured

  @contextlib.contextmanager
  def measure(self, what: Spent) -> Iterator[None]:
    """Adds the time of the block."""
    began = self._clock()
    try:
      yield
    finally:
      seconds = self._clock() - began
      self._spent[what] += seconds
      self._measured += seconds

  def row(self) -> dict[str, float]:
    """Returns the sums until now, for the metrics of a step."""
    wall = self._earlier + self._clock() - self._began
    steps = wall - sum(self._spent.values())
    return {
      "goodput": steps / wall if wall > 0 else 0.0,
      "wall_seconds": wall,
      **{f"{name}_seconds": spent for name, spent in self._spent.items()},
    }

  def __str__(self) -> str:
    row = self.row()
    rest = [
      f"{seconds:.0f} s {name.replace('_', ' ')}"
      for name, seconds in self._spent.items()
      if seconds >= 0.5
    ]
    steps = f"{row['goodput']:.0%} of {row['wall_seconds']:.0f} s for steps"
    return ", ".join([steps, *rest])
