"""What a run that is through must show, and how two of them differ."""

import contextlib
import json
import re
from pathlib import Path

import jax
import numpy as np

from benchmarks import faults
from benchmarks.jobs import Run
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.generations.store.inspection import RunGenerations

# The clock's, not the run's.
_TIMINGS = ("step_seconds", "examples_per_second", "search_ms", "gather_ms")
# What the watcher logs of a generation that it has verified.
_VERIFIED = re.compile(r"generation (\d+) is verified and loaded")
_REFUSAL = "is not used"
_KEPT_CHECKPOINTS = 3


def curve(run: Run) -> list[dict[str, float]]:
  """The rows of metrics.jsonl, without what the clock says."""
  lines = (run.model_dir / "metrics.jsonl").read_text().splitlines()
  return [
    {
      name: value
      for name, value in json.loads(line).items()
      if name not in _TIMINGS
    }
    for line in lines
  ]


def differences(expected: Run, got: Run) -> list[str]:
  """Where two runs are not the same, bit for bit; empty where they are."""
  found = []
  rows, other_rows = curve(expected), curve(got)
  if len(rows) != len(other_rows):
    found.append(f"{len(rows)} rows of metrics, and {len(other_rows)}")
  for row, other in zip(rows, other_rows, strict=False):
    if row != other:
      names = sorted(n for n in row | other if row.get(n) != other.get(n))
      found.append(f"metrics of step {row['step']}: {', '.join(names)}")
  parameters, other_parameters = map(_last_parameters, (expected, got))
  if parameters.keys() != other_parameters.keys():
    found.append("the last checkpoints hold other arrays")
  found += [
    f"the last checkpoint's {path}"
    for path, value in parameters.items()
    if path not in other_parameters
    or not np.array_equal(value, other_parameters[path])
  ]
  return found


def _last_parameters(run: Run) -> dict[str, np.ndarray]:
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    step = store.latest()
    items = store.restore(step, items=("retriever", "reader", "optimizer"))
  leaves, _ = jax.tree_util.tree_flatten_with_path({"step": step, **items})
  return {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}


def damaged_generations(run: Run) -> list[int]:
  """The published generations that are not whole, to the last byte."""
  found = RunGenerations.find(run.model_dir, None).inspect(checksums=True)
  return [one.step for one in found if one.problem]


def refusals(run: Run) -> list[str]:
  """The trainer's lines about generations that it could not use."""
  lines = run.trainer().log.read_text(errors="replace").splitlines()
  return [line for line in lines if _REFUSAL in line]


def problems(run: Run) -> list[str]:
  """What no fault may do to a run that is through; empty where all is well."""
  found = []
  rows = curve(run)
  if [row["step"] for row in rows] != list(range(1, run.num_steps + 1)):
    found.append(f"{len(rows)} rows of metrics for {run.num_steps} steps")
  log = run.trainer().log.read_text(errors="replace")
  verified = {int(step) for step in _VERIFIED.findall(log)}
  for row in rows:
    if row["generation"] not in verified:
      found.append(f"step {row['step']} searched what was never verified")
    if row["step"] - 1 - row["generation"] != row["staleness_steps"]:
      found.append(f"step {row['step']} does not know how stale it is")
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    steps = store.steps()
  last = range(0, run.num_steps + 1, run.save_every_steps)
  if wanted := {0, *last[-_KEPT_CHECKPOINTS:]} - set(steps):
    found.append(f"checkpoints {sorted(wanted)} are lost")
  marker = str(run.directory).encode()
  if left := [p for p in faults.searching() if marker in _environment(p)]:
    found.append(f"processes {left} still search for nobody")
  return found


def _environment(process: int) -> bytes:
  with contextlib.suppress(OSError):
    return Path(f"/proc/{process}/environ").read_bytes()
  return b""
