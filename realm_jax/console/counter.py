"""How far a loop is: a bar on a terminal, else a line now and then."""

import sys
import time

from absl import logging
from tqdm import tqdm

_LINE_SECONDS = 15.0


class Counter:
  """Counts what is done, for the time of a `with` block.

  Args:
    label: what is counted.
    total: how many there are, where that is known.
  """

  def __init__(self, label: str, *, total: int | None = None):
    self._label = label
    self._total = total
    self._bar = tqdm(
      total=total,
      desc=label,
      unit="",
      unit_scale=True,
      leave=False,
      disable=not sys.stderr.isatty(),
    )
    self._done = 0
    self._line_at = time.monotonic() + _LINE_SECONDS

  def __enter__(self) -> "Counter":
    return self

  def __exit__(self, *exception) -> None:
    self._bar.close()

  def advance(self, count: int) -> None:
    """Tells that so many more are done."""
    self._done += count
    self._bar.update(count)
    if self._bar.disable and time.monotonic() > self._line_at:
      self._line_at += _LINE_SECONDS
      of_total = "" if self._total is None else f" of {self._total}"
      logging.info("%s: %d%s done", self._label, self._done, of_total)
