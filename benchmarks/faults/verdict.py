"""Checks of a completed run, and differences between two runs."""

import contextlib
import re

import jax
import numpy as np

from benchmarks.runs.jobs import searching
from benchmarks.runs.pretraining import Run
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.inspection import inspect
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.training.metric_rows import read_rows

# Metrics that depend on the clock.
_TIMINGS = re.compile(r".*_(seconds|second|ms)")
# Message of the watcher about a verified generation.
_VERIFIED = re.compile(r"generation (\d+) is verified and loaded")
_REFUSAL = "is not used"
_KEPT_CHECKPOINTS = 3


def curve(run: Run) -> list[dict[str, float]]:
  """Reads the metrics of every step but those that depend on the clock."""
  return [
    {name: value for name, value in row.items() if not _TIMINGS.fullmatch(name)}
    for row in read_rows(run.model_dir)
  ]


def differences(expected: Run, got: Run) -> list[str]:
  """Lists the differences of two runs, which are compared bit for bit."""
  found = []
  rows, other_rows = curve(expected), curve(got)
  if len(rows) != len(other_rows):
    found.append(f"{len(rows)} rows of metrics, and {len(other_rows)}")
  for row, other in zip(rows, other_rows, strict=False):
    if row != other:
      names = sorted(n for n in row | other if row.get(n) != other.get(n))
      found.append(f"metrics of step {row['step']}: {', '.join(names)}")
  parameters, other_parameters = map(_last_parameters, (expected, got))
  found += [
    f"the last checkpoint's {path}"
    for path in parameters.keys() | other_parameters.keys()
    if path not in parameters
    or path not in other_parameters
    or not np.array_equal(parameters[path], other_parameters[path])
  ]
  return found


def _last_parameters(run: Run) -> dict[str, np.ndarray]:
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    step = store.latest()
    items = store.restore(step, items=("retriever", "reader", "optimizer"))
  leaves, _ = jax.tree_util.tree_flatten_with_path({"step": step, **items})
  return {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}


def damaged_generations(run: Run) -> list[int]:
  """Lists the published generations whose checksums do not match."""
  store = GenerationStore(directory_of(run.model_dir))
  return [
    one.step for one in inspect(store, None, checksums=True) if one.problem
  ]


def refusals(run: Run) -> list[str]:
  """Lists the trainer's messages about generations that it could not use."""
  lines = run.trainer().log.read_text(errors="replace").splitlines()
  return [line for line in lines if _REFUSAL in line]


def problems(run: Run) -> list[str]:
  """Lists what should not have happened in a completed run."""
  found = []
  rows = curve(run)
  if [row["step"] for row in rows] != list(range(1, run.num_steps + 1)):
    found.append(f"{len(rows)} rows of metrics for {run.num_steps} steps")
  log = run.trainer().log.read_text(errors="replace")
  verified = {int(step) for step in _VERIFIED.findall(log)}
  for row in rows:
    if row["generation"] not in verified:
      found.append(f"step {row['step']} searched an unverified generation")
    if row["step"] - 1 - row["generation"] != row["staleness_steps"]:
      found.append(f"step {row['step']} logged a wrong staleness")
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    steps = store.steps()
  # A run that was told to stop has saved at other steps, too.
  regular = range(0, run.num_steps + 1, run.save_every_steps)
  saved = sorted({*regular, *steps})
  if lost := {0, *saved[-_KEPT_CHECKPOINTS:]} - set(steps):
    found.append(f"checkpoints {sorted(lost)} are lost")
  if left := searching(str(run.directory)):
    found.append(f"processes {left} still search after the run")
  return found
