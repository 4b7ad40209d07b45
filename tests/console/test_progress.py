"""Progress reports: log lines without a terminal, a bar on one."""

import io
import sys

import pytest
from absl import logging

from realm_jax.console.progress import Progress


class _Clock:
  """A clock that a test sets forward by hand."""

  def __init__(self):
    self.seconds = 100.0

  def __call__(self) -> float:
    return self.seconds


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """The lines logged so far."""
  logged: list[str] = []
  monkeypatch.setattr(
    logging, "info", lambda line, *values: logged.append(line % values)
  )
  return logged


@pytest.fixture
def clock() -> _Clock:
  return _Clock()


def test_a_line_every_fifteen_seconds_and_one_at_the_end(lines, clock):
  with Progress("questions", total=40, clock=clock) as progress:
    for _ in range(8):
      clock.seconds += 5.0
      progress.advance(5)
    assert lines == [
      "questions: 15, 37%, 1.0/s",
      "questions: 30, 75%, 1.0/s",
    ]
  assert lines[2:] == ["questions: 40 in 40.0 s (1.0/s)"]


class _Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


@pytest.mark.parametrize(
  ("arguments", "bytes_read", "shown"),
  [({"total": 8}, 0, "4.00/8.00"), ({"total_bytes": 2000}, 500, "500/2.00k")],
)
def test_a_terminal_gets_a_bar_instead_of_lines(
  monkeypatch, lines, clock, arguments, bytes_read, shown
):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  with Progress("questions", clock=clock, **arguments) as progress:
    clock.seconds += 10.0
    progress.advance(4, bytes_read=bytes_read)
    assert shown in terminal.getvalue()
    assert lines == []
