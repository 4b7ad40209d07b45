"""What a run spends its time on, over all of its lives."""

import time
import types

import pytest

from realm_jax.training import goodput
from realm_jax.training.goodput import Goodput, lost_to


@pytest.fixture
def clock(monkeypatch):
  """A clock that a test sets forward: `clock(seconds)`."""
  now = [1000.0]

  def forward(seconds):
    now[0] += seconds

  read = lambda: now[0]  # noqa: E731
  fake = types.SimpleNamespace(time=read, monotonic=read)
  monkeypatch.setattr(goodput, "time", fake)
  return forward


def _rows(meter, clock, steps, *, save_after=None):
  """The rows of steps that take a second each."""
  rows = []
  for step in steps:
    clock(1.0)
    rows.append({"step": step, **meter.advance()})
    if step == save_after:
      with lost_to("save"):
        clock(2.0)
  return rows


def test_steps_count_once_over_all_lives(clock):
  meter = Goodput([], start_step=0, began=990.0)
  with lost_to("wait"):
    clock(5.0)
  rows = _rows(meter, clock, range(1, 7), save_after=4)
  # It is killed after step 6, is away for 7 seconds, and resumes after step 4.
  clock(7.0)
  meter = Goodput(rows, start_step=4, began=goodput.time.time())
  rows = _rows(meter, clock, range(5, 9))
  spent = rows[-1]["run_seconds"]
  # The first step of a life belongs to its start.
  assert spent == {
    "step": 3 + 3,
    "start": 10 + 1 + 7 + 1,
    "compile": 0,
    "wait": 5,
    "save": 2,
    "repeat": 2,
    "until": goodput.time.time(),
  }
  assert rows[-1]["goodput"] == pytest.approx(6 / 34)
  assert "17.6% of 34 s: step 6 s, start 19 s" in str(meter)


def test_compilation_is_no_part_of_a_step():
  import jax

  meter = Goodput([], start_step=0, began=time.time())
  meter.advance()
  jax.jit(lambda x: x * time.time())(1.0)
  assert meter.advance()["run_seconds"]["compile"] > 0
