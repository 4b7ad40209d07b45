"""Faults of one process of a group, and what the others do then."""

import dataclasses
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.runs import comparison
from benchmarks.runs.groups import (
  HEARTBEAT_TIMEOUT_SECONDS,
  GroupRun,
  Layout,
  started,
  wait_for_end,
)
from benchmarks.runs.jobs import wait_until
from benchmarks.runs.layout_runs import (
  TREE,
  LayoutRuns,
  logs_of,
  train,
  wait_for_checkpoint,
)
from benchmarks.runs.search_processes import searching

Row = dict[str, Any]

_LAYOUT = Layout(2, 4, fsdp=2)
_NUM_STEPS = 40
_TOLERANCE = 1e-4
# jax looks for dead processes now and then, and a process takes time to end.
_GRACE_SECONDS = 10.0
_SWAP = re.compile(r"generation \d+ replaces \d+ at step \d+")
_PREEMPTED = re.compile(r"Preempted: checkpoint saved at step (\d+)")
_CONTINUED = re.compile(r"continuing from checkpoint (\d+)")
# In the message with which jax ends a process, after another one has died.
_DEAD = re.compile(r"stopped sending heartbeats\):\n(\d+)\n")
_FELL_BACK = re.compile(r"(process \d+): .*: falling back to (.*)")


def inject(runs: LayoutRuns) -> Iterator[Row]:
  """Injects each fault into a run of its own, and yields what happened."""
  row, undisturbed = swap(runs)
  yield row
  yield crash_search(runs)
  yield terminate_one(runs, undisturbed)
  yield kill_one(runs, undisturbed)


def _following(runs: LayoutRuns, name: str, **settings: Any) -> GroupRun:
  """Returns a run that waits for generations, which it swaps in."""
  return runs.new(
    name,
    _LAYOUT,
    "pretrain",
    "EXACT",
    NUM_STEPS=_NUM_STEPS,
    SAVE_EVERY_STEPS=5,
    LAG_STEPS=5,
    WAIT_FOR_GENERATIONS=True,
    KEEP_CHECKPOINTS=_NUM_STEPS,
    **settings,
  )


def swap(runs: LayoutRuns) -> tuple[Row, GroupRun]:
  """Swaps generations in while training; returns the run as well."""
  run = _following(runs, "undisturbed")
  group, builder = run.trainers(), run.builder(mode="every")
  with started(*group, builder):
    wait_for_end(group, builder)
  swaps = [_SWAP.findall(log) for log in logs_of(run)]
  generations = {row["generation"] for row in comparison.rows(run.model_dir)}
  is_same = all(one == swaps[0] for one in swaps) and bool(swaps[0])
  # The metric is the mean over the processes.
  is_one = generations == set(range(0, _NUM_STEPS - 5, 5))
  row = {
    "fault": "generations swapped in",
    "observed": f"{len(swaps[0])} swaps, each at the same step in all "
    f"processes: {is_same and is_one}",
    "passed": is_same and is_one,
  }
  return row, run


def crash_search(runs: LayoutRuns) -> Row:
  """Kills the search process of process 1 while generations come."""
  run = dataclasses.replace(
    _following(runs, "crashed"), index="SCANN", index_settings=TREE
  )
  group, builder = run.trainers(), run.builder(mode="every")
  with started(*group, builder):
    wait_for_checkpoint(run, 10, *group, builder)
    wait_until(
      lambda: bool(searching(group[1].pid)), what="process that searches"
    )
    for process in searching(group[1].pid):
      os.kill(process, signal.SIGKILL)
    wait_for_end(group, builder)
  logs = logs_of(run)
  fallbacks = [_FELL_BACK.findall(log) for log in logs]
  swaps = [_SWAP.findall(log) for log in logs]
  is_same = all(one == fallbacks[0] for one in fallbacks)
  is_named = bool(fallbacks[0]) and fallbacks[0][0][0] == "process 1"
  goes_on = all(one == swaps[0] for one in swaps) and bool(swaps[0])
  return {
    "fault": "search process of process 1 killed",
    "observed": f"fallbacks of all processes: {fallbacks}; "
    f"{len(swaps[0])} swaps",
    "passed": is_same and is_named and goes_on,
  }


class _Signalled(NamedTuple):
  """A run of which process 1 got a signal, and which was started again.

  Attributes:
    codes: Exit codes of its processes.
    seconds: Time after the signal until all had ended.
    logs: Logs of its processes until then.
    left_at: Step of its last checkpoint then.
    difference: Greatest relative difference of its losses, in the end, from
      those of a run that nothing disturbed.
  """

  run: GroupRun
  codes: list[int | None]
  seconds: float
  logs: list[str]
  left_at: int
  difference: float


def _signal_one(
  runs: LayoutRuns, name: str, number: signal.Signals, undisturbed: GroupRun
) -> _Signalled:
  """Sends a signal to process 1, waits for all, and starts all again."""
  run = _following(runs, name)
  group, builder = run.trainers(), run.builder(mode="every")
  with started(builder):
    with started(*group):
      wait_for_checkpoint(run, 15, *group, builder)
      began = time.monotonic()
      os.kill(group[1].pid, number)
      wait_until(
        lambda: all(job.exit_code() is not None for job in group),
        what="end of the group",
      )
      seconds = time.monotonic() - began
      codes = [job.exit_code() for job in group]
    logs, left_at = logs_of(run), run.checkpoint_steps()[-1]
    train(run)
  difference = comparison.greatest_difference(
    comparison.losses(undisturbed.model_dir), comparison.losses(run.model_dir)
  )
  return _Signalled(run, codes, seconds, logs, left_at, difference)


def terminate_one(runs: LayoutRuns, undisturbed: GroupRun) -> Row:
  """Sends SIGTERM to process 1, and starts all again."""
  seen = _signal_one(runs, "terminated", signal.SIGTERM, undisturbed)
  saved = [_PREEMPTED.findall(log) for log in seen.logs]
  continued = [_CONTINUED.findall(log) for log in logs_of(seen.run)]
  wanted = [[str(seen.left_at)]] * len(seen.codes)
  return {
    "fault": "SIGTERM to process 1",
    "observed": f"exit codes {seen.codes} after {seen.seconds:.1f} s, "
    f"checkpoint {seen.left_at} saved; the run goes on from {continued[0]}, "
    f"losses within {seen.difference:.1e}",
    "passed": seen.codes == [0] * len(seen.codes)
    and saved == continued == wanted
    and seen.difference <= _TOLERANCE,
  }


def kill_one(runs: LayoutRuns, undisturbed: GroupRun) -> Row:
  """Sends SIGKILL to process 1, and starts all again."""
  seen = _signal_one(runs, "killed", signal.SIGKILL, undisturbed)
  dead = _DEAD.findall(seen.logs[0])
  return {
    "fault": "SIGKILL to process 1",
    "observed": f"process 0 exits with {seen.codes[0]} after "
    f"{seen.seconds:.1f} s, naming {dead}; the run goes on from "
    f"{seen.left_at}, losses within {seen.difference:.1e}",
    "passed": seen.codes[0] != 0
    and seen.seconds <= HEARTBEAT_TIMEOUT_SECONDS + _GRACE_SECONDS
    and dead == ["1"]
    and seen.difference <= _TOLERANCE,
  }
