"""Progress of a long loop: a bar on a terminal, else occasional log lines."""

import sys
import time
from collections.abc import Callable

from absl import logging
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_REDRAWS = 0.2


class Progress:
  """Reports how many items a `with` block has processed.

  On a terminal this is a bar. Elsewhere a line is logged every 15 seconds.
  A block that took longer than that ends with a line in both cases.

  Args:
    label: Name of what is counted, such as "questions".
    total: Number of items, where it is known.
    total_bytes: Size of the input files. If given, the bar and the percentage
      follow the bytes that `advance` reports instead of the items.
    clock: Source of the time in seconds.
  """

  def __init__(
    self,
    label: str,
    *,
    total: int | None = None,
    total_bytes: int | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._label = label
    self._counts_bytes = total_bytes is not None
    self._total = total_bytes if self._counts_bytes else total
    self._clock = clock
    self._bar = tqdm(
      total=self._total,
      desc=label,
      unit="B" if self._counts_bytes else "",
      unit_scale=True,
      leave=False,
      mininterval=0,  # `advance` limits how often the bar is drawn.
      disable=not sys.stderr.isatty(),
    )
    self._interval = (
      _SECONDS_BETWEEN_LINES if self._bar.disable else _SECONDS_BETWEEN_REDRAWS
    )
    self._count = 0
    self._start = clock()
    self._show_at = self._start + self._interval

  def __enter__(self) -> "Progress":
    return self

  def __exit__(
    self, exception_type: type[BaseException] | None, *_: object
  ) -> None:
    self._bar.close()
    seconds = self._clock() - self._start
    if exception_type is None and seconds >= _SECONDS_BETWEEN_LINES:
      done = f"{self._count} in {seconds:.1f} s ({self._rate(seconds)})"
      logging.info("%s: %s", self._label, done)

  def advance(self, count: int = 1, *, bytes_read: int = 0) -> None:
    """Records progress, and shows it if it is time to.

    Args:
      count: Number of items processed since the last call.
      bytes_read: Bytes of the input files read so far, in total.
    """
    self._count += count
    now = self._clock()
    if now < self._show_at:
      return
    self._show_at = now + self._interval
    done = bytes_read if self._counts_bytes else self._count
    rate = self._rate(now - self._start)
    if not self._bar.disable:
      if self._counts_bytes:
        self._bar.set_postfix_str(f"{self._count} read, {rate}", refresh=False)
      self._bar.update(done - self._bar.n)
      return
    percentage = f", {100 * done // self._total}%" if self._total else ""
    logging.info("%s: %d%s, %s", self._label, self._count, percentage, rate)

  def _rate(self, seconds: float) -> str:
    return f"{self._count / max(seconds, 1e-9):,.1f}/s"
