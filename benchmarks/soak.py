"""Injects faults into a run at random times, and checks its result.

    python -m benchmarks.soak --json=soak.json
    python -m benchmarks.soak --storage=bucket --faults=30

First, a run with WAIT_FOR_SNAPSHOTS and exact search completes undisturbed.
Then the same run is repeated while its processes are killed, its published
files are damaged or removed, and its builder is suspended or its disk is full.
Only the commands themselves restart processes, until the run is complete. Its
loss curve and last checkpoint must equal the undisturbed run's, bit for bit. A
third run searches with ScaNN, whose process is also killed. The test fails if a
command gives up, or if a run is too short for its faults.

From the cost of the kills, it computes the goodput of a run with one kill an
hour: the share of its time that is spent on steps, counting each step once.

With `--storage=bucket`, the disturbed run has its corpus and MODEL_DIR in an
object store on this machine, whose requests fail, hang or lose their responses.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags
from benchmarks.data import demo_corpus
from harness.faults import verdict
from harness.faults.disturbed import (
  CRASH,
  IN_BUCKET,
  NOTHING,
  ON_DISK,
  Fault,
  finish,
)
from harness.object_store import ObjectStore
from harness.pretraining import Run
from realm_jax.storage.paths import upload_directory

# Number of last checkpoints without faults, so that no fault comes too late.
_QUIET_CHECKPOINTS = 8
_SAVE_EVERY_STEPS = 5
_FAULTS_PER_CHECKPOINT = 3
# Share of the faults on a disk that are for the run with ScaNN.
_OF_SCANN = 0.25
# Explicit settings, because a small number of blocks gets no tree by default.
_TREE = {
  "brute_force_below": 0,
  "below_target": True,
  "num_leaves": 16,
  "num_leaves_searched": 8,
  "num_reordered": 64,
}


def _run(
  directory: Path,
  name: str,
  index: str,
  num_faults: int,
  store: ObjectStore | None = None,
) -> Run:
  """Returns a run that is long enough for some number of faults."""
  tree = _TREE if index == "SCANN" else {}
  checkpoints = (
    max(6, num_faults // _FAULTS_PER_CHECKPOINT) + _QUIET_CHECKPOINTS
  )
  environment = {
    # Otherwise each restarted trainer would compile for ten seconds.
    "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "REALM_JAX_CACHE_DIR": str(directory / "cache"),
    # A hanging request is repeated after this time.
    "REALM_JAX_REQUEST_TIMEOUT_SECONDS": "5",
    **os.environ,
    # With limited file sizes, truncated modules would be written.
    "PYTHONDONTWRITEBYTECODE": "1",
    # This variable identifies the processes of the run.
    "REALM_SOAK": str(directory / name),
  }
  return Run(
    directory=directory / name,
    corpus_dir=store.path("corpus") if store else directory / "corpus",
    model="benchmarks/soak.gin",
    num_steps=checkpoints * _SAVE_EVERY_STEPS,
    save_every_steps=_SAVE_EVERY_STEPS,
    index=index,
    index_settings={f"scann.ScannConfig.{n}": v for n, v in tree.items()},
    environment=environment,
    store=store,
  )


def soak(
  directory: Path, num_faults: int, *, in_bucket: bool, seed: int
) -> dict[str, Any]:
  """Runs undisturbed on the disk, then disturbed for each index.

  Args:
    directory: Empty folder.
    num_faults: Number of faults, in all runs.
    in_bucket: Whether the disturbed run has MODEL_DIR in a bucket.
    seed: Seed of the faults.
  """
  corpus_dir = demo_corpus.make_corpus(directory, scale=0.25)
  of_scann = 0 if in_bucket else round(num_faults * _OF_SCANN)
  counts = {"EXACT": num_faults - of_scann, "SCANN": of_scann}
  unbroken = _run(directory, "unbroken", "EXACT", counts["EXACT"])
  print(f"{unbroken.num_steps} undisturbed steps …", flush=True)
  result = {"unbroken": _metrics(unbroken, ())}
  if result["unbroken"]["problems"]:
    return result
  step_seconds = result["unbroken"]["seconds"] / unbroken.num_steps
  with ObjectStore() if in_bucket else contextlib.nullcontext() as store:
    if store is not None:
      # This process reads the files of the runs.
      os.environ.update(store.environment)
      upload_directory(corpus_dir, store.path("corpus"))
    for index, count in counts.items():
      if not count:
        continue
      name = f"broken_{index.lower()}"
      run = _run(directory, name, index, count, store)
      names = {*(IN_BUCKET if in_bucket else ON_DISK)}
      if index != "SCANN":
        names.discard(CRASH)
      planned = _draw_faults(
        *(run, count, sorted(names)),
        cycle_seconds=step_seconds * _SAVE_EVERY_STEPS,
        seed=seed,
      )
      result[name] = _metrics(run, planned)
      if not result[name]["problems"] and index == unbroken.index:
        result[name]["differences"] = verdict.differences(unbroken, run)
        result[name] |= _goodput(run, result[name]["restarts"])
  return result


def _draw_faults(
  run: Run,
  count: int,
  names: Sequence[str],
  *,
  cycle_seconds: float,
  seed: int,
) -> list[Fault]:
  """Draws random faults, spread over a run, with the same number of each kind.

  Each fault happens at a random time within two cycles after a random
  checkpoint, where a cycle is save, embed, publish, load and the steps between
  checkpoints. So some faults happen soon after another, while processes are
  starting. The last checkpoints have no faults.
  """
  rng = np.random.default_rng(seed)
  limit = run.num_steps - _QUIET_CHECKPOINTS * _SAVE_EVERY_STEPS
  steps = np.sort(rng.integers(0, limit, count)).tolist()
  kinds_drawn = rng.permutation(np.resize(names, count)).tolist()
  return [
    Fault(
      *(kind, step, rng.uniform(0, 2 * cycle_seconds)),
      seed=int(rng.integers(1 << 31)),
    )
    for kind, step in zip(kinds_drawn, steps, strict=True)
  ]


def _metrics(run: Run, planned: Sequence[Fault]) -> dict[str, Any]:
  """Completes a run, and returns what happened, as JSON values."""
  began = time.monotonic()
  outcome = finish(run, planned)
  faults = outcome["faults"]
  metrics = {
    "steps": run.num_steps,
    "seconds": round(time.monotonic() - began, 1),
    "nothing_to_hit": sum(fault["what"] == NOTHING for fault in faults),
    **outcome,
  }
  if not outcome["problems"]:
    snapshots = {row["snapshot"] for row in verdict.curve(run)}
    metrics["swaps"] = len(snapshots) - 1
    metrics["refused_snapshots"] = verdict.refusals(run)
  return metrics


def _goodput(run: Run, restarts: dict[str, list[str]]) -> dict[str, float]:
  """Returns the cost of a restart, and the goodput with one restart an hour."""
  spent = verdict.seconds(run)
  lost = spent["start"] + spent["compile"] + spent["repeat"]
  each = lost / (1 + len(restarts["trainer"]))
  return {
    "seconds_per_start": round(each, 1),
    "goodput_at_one_fault_an_hour": round(1 - each / 3600, 4),
  }


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the soak test; returns 1 if anything went wrong."""
  options = flags.parse(__doc__, argv, faults=200, storage="disk", seed=0)
  if options.storage not in ("disk", "bucket"):
    sys.exit(f"--storage={options.storage}; want disk or bucket")
  # Exits by an exception, so that jobs are ended.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
  folder = Path(tempfile.mkdtemp(prefix="realm_soak_"))
  print(f"runs and logs are in {folder}")
  result = soak(
    folder,
    options.faults,
    in_bucket=options.storage == "bucket",
    seed=options.seed,
  )
  passed = len(result) > 1 and not any(
    run["problems"] or run.get("differences") for run in result.values()
  )
  flags.write(options, {**result, "passed": passed})
  for name, run in result.items():
    for figure, value in run.items():
      shown = len(value) if figure == "faults" else value
      if figure == "restarts":
        shown = {job: len(lines) for job, lines in value.items()}
      print(f"{name}: {figure}: {shown}")
  print(f"passed: {passed}")
  if passed:
    shutil.rmtree(folder)
  return 0 if passed else 1


if __name__ == "__main__":
  sys.exit(main())
