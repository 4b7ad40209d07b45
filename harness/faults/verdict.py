"""Checks a completed run, and compares two runs."""

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from harness.jobs import Job
from harness.pretraining import Run
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.training.metric_rows import read_rows

# Metrics that depend on the clock.
_TIMINGS = re.compile(r".*_(seconds|second|ms)|goodput")
# Message of the watcher about a verified snapshot.
_VERIFIED = re.compile(r"snapshot (\d+) is verified and loaded")
_KEPT_CHECKPOINTS = 3
_SEARCHES = b"realm_jax.indexes.isolated"


def curve(run: Run) -> list[dict[str, float]]:
  """Reads the metrics of every step, except those that depend on the clock."""
  return [
    {name: value for name, value in row.items() if not _TIMINGS.fullmatch(name)}
    for row in read_rows(run.model_dir)
  ]


def seconds(run: Run) -> dict[str, float]:
  """Returns how a run has spent its time, including before restarts."""
  return read_rows(run.model_dir)[-1]["run_seconds"]


def differences(expected: Run, got: Run) -> list[str]:
  """Compares two runs bit for bit, and lists their differences."""
  different = []
  for what, read in (
    ("metrics", _metrics),
    ("the last checkpoint", _last_parameters),
  ):
    first, second = read(expected), read(got)
    names = first.keys() | second.keys()
    different += [
      f"{what}: {name}"
      for name in sorted(names)
      if not np.array_equal(first.get(name, np.nan), second.get(name, np.nan))
    ]
  return different


def _metrics(run: Run) -> dict[str, Any]:
  return {
    f"{name} of row {number}": value
    for number, row in enumerate(curve(run))
    for name, value in row.items()
  }


def _last_parameters(run: Run) -> dict[str, Any]:
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    step = store.latest()
    items = store.restore(step, items=("retriever", "reader", "optimizer"))
  leaves, _ = jax.tree_util.tree_flatten_with_path({"step": step, **items})
  return {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}


def refusals(run: Run) -> list[str]:
  """Lists the trainer's messages about unusable snapshots."""
  lines = run.trainer().log.read_text(errors="replace").splitlines()
  return [line for line in lines if "is not used" in line]


def restarts(job: Job) -> list[str]:
  """Lists the lines of a job's supervisor about restarts."""
  lines = job.log.read_text(errors="replace").splitlines()
  return [line for line in lines if line.startswith("supervisor: ")]


def problems(run: Run) -> list[str]:
  """Lists the problems of a completed run."""
  lines = []
  rows = curve(run)
  if [row["step"] for row in rows] != list(range(1, run.num_steps + 1)):
    lines.append(f"{len(rows)} rows of metrics for {run.num_steps} steps")
  log = run.trainer().log.read_text(errors="replace")
  verified = {int(step) for step in _VERIFIED.findall(log)}
  for row in rows:
    if row["snapshot"] not in verified:
      lines.append(f"step {row['step']} searched an unverified snapshot")
    if row["step"] - 1 - row["snapshot"] != row["staleness_steps"]:
      lines.append(f"step {row['step']} logged a wrong staleness")
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    steps = store.steps()
  # A run that was told to stop has also saved at other steps.
  regular = range(0, run.num_steps + 1, run.save_every_steps)
  saved = sorted({*regular, *steps})
  if lost := {0, *saved[-_KEPT_CHECKPOINTS:]} - set(steps):
    lines.append(f"checkpoints {sorted(lost)} are lost")
  if left := searching(str(run.directory)):
    lines.append(f"processes {left} still search after the run")
  return lines


def searching(marker: str, parent: int | None = None) -> list[int]:
  """Returns the processes that search an index for a run.

  Args:
    marker: Word that the environment of the run's processes contains.
    parent: Process whose children are listed; None lists all.
  """
  processes = []
  for path in Path("/proc").glob("[0-9]*"):
    # One may end meanwhile.
    with contextlib.suppress(OSError):
      stat = path.joinpath("stat").read_text().rpartition(")")[2].split()
      if (
        parent in (None, int(stat[1]))
        and _SEARCHES in path.joinpath("cmdline").read_bytes()
        and marker.encode() in path.joinpath("environ").read_bytes()
      ):
        processes.append(int(path.name))
  return processes
