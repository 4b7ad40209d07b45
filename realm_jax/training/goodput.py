"""Goodput: the share of a run's wall time in which it made progress.

It includes all processes of a run, from start to start, and the time between
them. Each row of metrics has the sums so far, from which a resumed run
continues.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

# Seconds of this process that were not spent on steps.
_spent = {"compile": 0.0, "wait": 0.0, "save": 0.0}


def _note(event: str, duration_secs: float, **_: Any) -> None:
  if event == "/jax/core/compile/backend_compile_duration":
    _spent["compile"] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_note)


@contextlib.contextmanager
def lost_to(kind: str) -> Iterator[None]:
  """Counts the seconds of a `with` block as `wait` or `save`, not as a step."""
  began = time.monotonic()
  try:
    yield
  finally:
    _spent[kind] += time.monotonic() - began


class Goodput:
  """The seconds of a run, counted from `began` or from its last earlier row."""

  def __init__(
    self, rows: Sequence[dict[str, Any]], *, start_step: int, began: float
  ):
    self._seconds = {"step": 0.0, "start": 0.0, "repeat": 0.0}
    self._seconds |= dict.fromkeys(_spent, 0.0)
    self._last, self._charged, self._kind = began, _spent.copy(), "start"
    if rows and "run_seconds" in rows[-1]:
      before = [row for row in rows if row["step"] <= start_step]
      self._seconds = dict(rows[-1]["run_seconds"])
      self._last = self._seconds.pop("until")
      kept = before[-1]["run_seconds"]["step"] if before else 0.0
      self._seconds["repeat"] += self._seconds["step"] - kept
      self._seconds["step"] = kept

  def advance(self) -> dict[str, Any]:
    """Counts the time up to the end of a step; returns fields of its row."""
    now = time.time()
    left = max(0.0, now - self._last)
    for kind, seconds in _spent.items():
      lost = min(left, seconds - self._charged[kind])
      self._seconds[kind] += lost
      left -= lost
    self._seconds[self._kind] += left
    self._last, self._charged, self._kind = now, _spent.copy(), "step"
    share = self._seconds["step"] / max(sum(self._seconds.values()), 1e-9)
    return {"goodput": share, "run_seconds": {**self._seconds, "until": now}}

  def __str__(self) -> str:
    share, seconds = self.advance()["goodput"], self._seconds
    parts = ", ".join(f"{kind} {x:.0f} s" for kind, x in seconds.items())
    return f"goodput {share:.1%} of {sum(seconds.values()):.0f} s: {parts}"
