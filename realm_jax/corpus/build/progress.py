"""Progress through input files: a bar on a terminal, else a log line."""

import sys
import time

from absl import logging
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_REDRAWS = 0.2


class Progress:
  """Shows how many bytes of the input are read, and documents a second."""

  def __init__(self, label: str, total_bytes: int):
    self._label = label
    self._total_bytes = max(total_bytes, 1)
    self._started = self._last_shown = time.monotonic()
    self._documents = 0
    self._bar = tqdm(
      total=total_bytes,
      desc=label,
      unit="B",
      unit_scale=True,
      disable=not sys.stderr.isatty(),
    )

  def update(self, *, documents: int, bytes_read: int) -> None:
    """Tells how far the build is, in all."""
    self._documents = documents
    now = time.monotonic()
    if not self._bar.disable:
      if now - self._last_shown > _SECONDS_BETWEEN_REDRAWS:
        self._last_shown = now
        self._bar.set_postfix_str(f"{self._rate():,.0f} documents/s", False)
        self._bar.update(bytes_read - self._bar.n)
    elif now - self._last_shown > _SECONDS_BETWEEN_LINES:
      self._last_shown = now
      logging.info(
        "%s: %d%%, %d documents, %.0f documents/s",
        self._label,
        100 * bytes_read // self._total_bytes,
        documents,
        self._rate(),
      )

  def _rate(self) -> float:
    return self._documents / max(time.monotonic() - self._started, 1e-9)

  def close(self) -> None:
    self._bar.close()
    logging.info(
      "%s: %d documents in %.1f s, %.0f documents/s",
      self._label,
      self._documents,
      time.monotonic() - self._started,
      self._rate(),
    )
