"""Injects faults into a run at random moments and checks its result.

    python -m benchmarks.soak --json=soak.json
    python -m benchmarks.soak --storage=bucket --faults=30

A run with WAIT_FOR_GENERATIONS and exact search is done once undisturbed. Then
the same run is repeated while its processes are killed, its published files are
damaged or removed, and its builder is suspended, run twice or meets a full
disk. Every process that ends is restarted, until the run is complete. Its loss
curve and last checkpoint must equal those of the undisturbed run bit for bit. A
third run searches ScaNN, whose process is killed as well. It is a problem if a
trainer exits that could have continued, or if a run is too short for its
faults.

With `--storage=bucket` two processes train together and two build each
generation, all through an object store on this machine. They are killed, its
requests fail, hang or lose their answers, and its objects are removed or
changed. The undisturbed run has the same processes and a MODEL_DIR on the disk.
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import demo_corpus
from benchmarks.faults import kinds, verdict
from benchmarks.faults.disturbed import CRASH, Fault, Injector, finish
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs.object_store import ObjectStore
from benchmarks.runs.pretraining import Run
from realm_jax.storage.json_files import write_json

# Checkpoints at the end without faults, so that no fault comes too late.
_QUIET_CHECKPOINTS = 8
_SAVE_EVERY_STEPS = 5
_FAULTS_PER_CHECKPOINT = 3
# Share of the faults on a disk for each index.
_SHARES = {"EXACT": 0.75, "SCANN": 0.25}
# A given tree, because so few blocks would otherwise be searched without one.
_TREE = fixed_tree(
  16,
  num_leaves_searched=8,
  num_reordered=64,
  reordering="float32",
)
# A hanging request is repeated after this many seconds.
_REQUEST_TIMEOUT_SECONDS = 5


def _run(
  directory: Path,
  name: str,
  index: str,
  num_faults: int,
  *,
  num_processes: int = 1,
  store: ObjectStore | None = None,
) -> Run:
  """Returns a run that is long enough for a number of faults."""
  folder = directory / f"{name}_{index.lower()}"
  tree = dataclasses.asdict(_TREE) if index == "SCANN" else {}
  checkpoints = (
    max(6, num_faults // _FAULTS_PER_CHECKPOINT) + _QUIET_CHECKPOINTS
  )
  environment = {
    # Otherwise each start of a trainer would compile for ten seconds.
    "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "REALM_JAX_CACHE_DIR": str(directory / "cache"),
    "REALM_JAX_REQUEST_TIMEOUT_SECONDS": str(_REQUEST_TIMEOUT_SECONDS),
    **os.environ,
    # With limited files, only the beginning of a module would be written.
    "PYTHONDONTWRITEBYTECODE": "1",
    # This variable identifies the processes of the run.
    "REALM_SOAK": str(folder),
  }
  return Run(
    directory=folder,
    corpus_dir=store.path("corpus") if store else directory / "corpus",
    model="benchmarks/soak.gin",
    num_steps=checkpoints * _SAVE_EVERY_STEPS,
    save_every_steps=_SAVE_EVERY_STEPS,
    index=index,
    index_settings={f"scann.ScannConfig.{n}": v for n, v in tree.items()},
    environment=environment,
    num_processes=num_processes,
    store=store,
  )


def soak(
  directory: Path, num_faults: int, *, storage: str, seed: int
) -> dict[str, Any]:
  """Does the undisturbed run on the disk, and a disturbed one for each index.

  Args:
    directory: Empty folder.
    num_faults: Number of faults, in all runs.
    storage: `disk` or `bucket`, where the disturbed runs have MODEL_DIR.
    seed: Seed of the faults.
  """
  corpus_dir = demo_corpus.make_corpus(directory, scale=0.25)
  in_bucket = storage == "bucket"
  processes = 2 if in_bucket else 1
  shares = {"EXACT": 1.0} if in_bucket else _SHARES
  counts = {index: round(num_faults * part) for index, part in shares.items()}
  injectors = kinds.IN_BUCKET if in_bucket else kinds.ON_DISK
  unbroken = _run(
    directory, "unbroken", "EXACT", counts["EXACT"], num_processes=processes
  )
  print(f"{unbroken.num_steps} undisturbed steps …", flush=True)
  undisturbed = _figures(unbroken)
  result: dict[str, Any] = {"unbroken": undisturbed, "runs": []}
  if undisturbed["problems"]:
    return result
  seconds = undisturbed["seconds"]
  print(f"… took {seconds} s", flush=True)
  with ObjectStore() if in_bucket else contextlib.nullcontext() as store:
    if store is not None:
      # What the runs have left is read here.
      os.environ.update(store.environment)
      store.write_folder("corpus", corpus_dir)
    for index, count in counts.items():
      print(f"{index}: {count} faults", flush=True)
      run = _run(
        *(directory, "broken", index, count),
        num_processes=processes,
        store=store,
      )
      planned = _draw_faults(
        count,
        names=[name for name in injectors if index == "SCANN" or name != CRASH],
        num_steps=run.num_steps,
        cycle_seconds=seconds * _SAVE_EVERY_STEPS / unbroken.num_steps,
        seed=seed,
      )
      found = _figures(run, planned, injectors)
      if found["is_through"] and index == unbroken.index:
        found["differences"] = verdict.differences(unbroken, run)
      result["runs"].append(found)
  return result


def _draw_faults(
  count: int,
  *,
  names: Sequence[str],
  num_steps: int,
  cycle_seconds: float,
  seed: int,
) -> list[Fault]:
  """Draws random faults, equally many of each kind, spread over a run.

  Three in four come at a random time within two cycles after a random
  checkpoint (a cycle is save, embed, publish, load and the steps between
  checkpoints). The others come soon after the previous fault, while processes
  are starting. The last checkpoints have no faults.
  """
  rng = np.random.default_rng(seed)
  limit = num_steps - _QUIET_CHECKPOINTS * _SAVE_EVERY_STEPS
  steps = np.sort(rng.integers(0, limit, count)).tolist()
  drawn_names = rng.permutation(np.resize(names, count)).tolist()
  drawn: list[Fault] = []
  for step, name in zip(steps, drawn_names, strict=True):
    checkpoint, delay = step, rng.uniform(0, 2 * cycle_seconds)
    if drawn and rng.random() < 0.25:
      checkpoint, delay = drawn[-1].checkpoint, rng.uniform(0, 5)
    drawn.append(Fault(name, checkpoint, delay, int(rng.integers(1 << 31))))
  return drawn


def _figures(
  run: Run,
  planned: Sequence[Fault] = (),
  injectors: Mapping[str, Injector] | None = None,
) -> dict[str, Any]:
  """Does a run, and returns what happened, with the values that JSON knows."""
  began = time.monotonic()
  outcome = finish(run, planned, injectors)
  seconds = time.monotonic() - began
  found: dict[str, Any] = {
    "index": run.index,
    "steps": run.num_steps,
    "seconds": round(seconds, 1),
    "planned": len(planned),
    **outcome,
    "refused_generations": verdict.refusals(run),
  }
  if outcome["is_through"]:
    found["left_damaged"] = verdict.damaged_generations(run)
    found["swaps"] = len({row["generation"] for row in verdict.curve(run)}) - 1
  return found


def passed(result: dict[str, Any]) -> bool:
  """Returns whether no run had a problem or a difference."""
  judged = [result["unbroken"], *result["runs"]]
  return bool(result["runs"]) and not any(
    one["problems"] or one.get("differences") for one in judged
  )


def report(result: dict[str, Any]) -> str:
  """Formats the result as text."""
  lines = [f"undisturbed: {result['unbroken']['seconds']} s"]
  lines += result["unbroken"]["problems"]
  for run in result["runs"]:
    met = run["faults"]
    counts = collections.Counter(one["fault"]["kind"] for one in met)
    differences = run.get("differences", ["not compared"])
    lines += [
      f"\n{run['index']}: {len(met)} of {run['planned']} faults in "
      f"{run['seconds']} s, {run.get('swaps', 0)} swaps",
      ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())),
      f"nothing to hit: {sum(one['what'] == kinds.NOTHING for one in met)}",
      f"in the midst of a write: {sum(bool(o['half_written']) for o in met)}",
      f"damaged generations refused: {len(run['refused_generations'])}",
      f"problems: {'; '.join(run['problems']) or 'none'}",
      f"differences: {'; '.join(differences) or 'none'}",
    ]
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the soak test; returns 1 if anything went wrong."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--faults", type=int, default=200, help="number of faults"
  )
  parser.add_argument(
    "--storage",
    choices=["disk", "bucket"],
    default="disk",
    help="where MODEL_DIR is",
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
  parser.add_argument(
    "--output_dir",
    type=Path,
    help="empty folder for runs and logs, which are kept",
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  kept = given.output_dir
  if kept and kept.exists() and any(kept.iterdir()):
    parser.error(f"--output_dir={kept} is not empty; name another folder")
  # The jobs are ended on the way out.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
  folder = kept or Path(tempfile.mkdtemp(prefix="realm_soak_"))
  is_passed = False
  try:
    result = soak(folder, given.faults, storage=given.storage, seed=given.seed)
    is_passed = passed(result)
    if given.json:
      write_json(given.json, {**result, "passed": is_passed})
    print(f"{report(result)}\n\npassed: {is_passed}")
  finally:
    if is_passed and not kept:
      shutil.rmtree(folder)
    else:
      print(f"runs and logs are kept in {folder}")
  return 0 if is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
