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

from benchmarks.data import demo_corpus
from benchmarks.faults import in_bucket, on_disk
from benchmarks.faults.disturbed import CRASH
from benchmarks.faults.disturbed_run import finish, run_with_faults
from benchmarks.faults.injection import (
  NOTHING,
  QUIET_CHECKPOINTS,
  Injector,
  draw_faults,
)
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs.object_store import ObjectStore
from benchmarks.runs.pretraining import BucketRun, MultiProcessRun, Run
from realm_jax.storage.json_files import write_json

_SAVE_EVERY_STEPS = 5
_FAULTS_PER_CHECKPOINT = 3
_MODEL = "benchmarks/soak.gin"
# Share of the faults for each index.
_SHARES = {"EXACT": 0.75, "SCANN": 0.25}
# A given tree, because so few blocks would otherwise be searched without one.
_TREE = fixed_tree(
  16,
  num_leaves_searched=8,
  num_reordered=64,
  reordering="float32",
  reuse=True,
)
# A hanging request is repeated after this many seconds.
_REQUEST_TIMEOUT_SECONDS = 5


def _settings(directory: Path, name: str, index: str) -> dict[str, Any]:
  """Returns what the runs of a soak have in common."""
  folder = directory / f"{name}_{index.lower()}"
  tree = dataclasses.asdict(_TREE) if index == "SCANN" else {}
  return {
    "directory": folder,
    "corpus_dir": directory / "corpus",
    "model": _MODEL,
    "save_every_steps": _SAVE_EVERY_STEPS,
    "index": index,
    "index_settings": {f"scann.ScannConfig.{n}": v for n, v in tree.items()},
    "environment": {
      # Otherwise each start of a trainer would compile for ten seconds.
      "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      **os.environ,
      # With limited files, only the beginning of a module would be written.
      "PYTHONDONTWRITEBYTECODE": "1",
      # This variable identifies the processes of the run.
      "REALM_SOAK": str(folder),
    },
  }


def _num_steps(count: int) -> int:
  checkpoints = max(6, count // _FAULTS_PER_CHECKPOINT) + QUIET_CHECKPOINTS
  return checkpoints * _SAVE_EVERY_STEPS


def soak_on_disk(
  directory: Path, counts: Mapping[str, int], *, seed: int
) -> dict[str, Any]:
  """Does the undisturbed run, and a disturbed one for each index.

  Args:
    directory: Empty folder.
    counts: Number of faults by index, exact search first.
    seed: Seed of the faults.
  """
  demo_corpus.make_corpus(directory, scale=0.25)
  num_steps = {index: _num_steps(count) for index, count in counts.items()}
  unbroken = Run(
    num_steps=next(iter(num_steps.values())),
    **_settings(directory, "unbroken", "EXACT"),
  )
  broken = [
    Run(num_steps=num_steps[index], **_settings(directory, "broken", index))
    for index in counts
  ]
  return _soak(
    unbroken, broken, list(counts.values()), on_disk.KINDS, seed=seed
  )


def soak_in_bucket(directory: Path, count: int, *, seed: int) -> dict[str, Any]:
  """Does the undisturbed run on the disk, and a disturbed one in a bucket.

  Args:
    directory: Empty folder.
    count: Number of faults.
    seed: Seed of the faults.
  """
  corpus_dir = demo_corpus.make_corpus(directory, scale=0.25)
  num_steps = _num_steps(count)
  unbroken = MultiProcessRun(
    num_steps=num_steps, **_settings(directory, "unbroken", "EXACT")
  )
  with ObjectStore() as store:
    # What the runs have left is read here.
    os.environ.update(store.environment)
    for path in sorted(corpus_dir.rglob("*")):
      if path.is_file():
        name = path.relative_to(corpus_dir).as_posix()
        store.write(f"corpus/{name}", path.read_bytes())
    settings = _settings(directory, "broken", "EXACT")
    settings["corpus_dir"] = store.path("corpus")
    settings["environment"] |= {
      "REALM_JAX_CACHE_DIR": str(directory / "cache"),
      "REALM_JAX_REQUEST_TIMEOUT_SECONDS": str(_REQUEST_TIMEOUT_SECONDS),
    }
    broken = BucketRun(num_steps=num_steps, store=store, **settings)
    return _soak(unbroken, [broken], [count], in_bucket.KINDS, seed=seed)


def _soak(
  unbroken: Run,
  broken: Sequence[Run],
  counts: Sequence[int],
  injectors: Mapping[str, Injector],
  *,
  seed: int,
) -> dict[str, Any]:
  """Does the undisturbed run, and each run with its number of faults."""
  print(f"{unbroken.num_steps} undisturbed steps …", flush=True)
  began = time.monotonic()
  undisturbed = finish(unbroken)
  seconds = time.monotonic() - began
  result: dict[str, Any] = {
    "unbroken": {
      "steps": unbroken.num_steps,
      "seconds": round(seconds, 1),
      "problems": undisturbed.problems,
    },
    "runs": [],
  }
  if undisturbed.problems:
    return result
  print(f"… took {seconds:.0f} s", flush=True)
  for run, count in zip(broken, counts, strict=True):
    print(f"{run.index}: {count} faults", flush=True)
    planned = draw_faults(
      count,
      kinds=[k for k in injectors if run.index == "SCANN" or k != CRASH],
      num_steps=run.num_steps,
      save_every_steps=run.save_every_steps,
      cycle_seconds=seconds * _SAVE_EVERY_STEPS / unbroken.num_steps,
      seed=seed,
    )
    expected = unbroken if run.index == unbroken.index else None
    result["runs"].append(
      run_with_faults(run, planned, injectors, expected=expected)
    )
  return result


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
      f"nothing to hit: {sum(one['what'] == NOTHING for one in met)}",
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
  counts = {
    index: round(given.faults * share) for index, share in _SHARES.items()
  }
  kept = given.output_dir
  if kept and kept.exists() and any(kept.iterdir()):
    parser.error(f"--output_dir={kept} is not empty; name another folder")
  # The jobs are ended on the way out.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
  folder = kept or Path(tempfile.mkdtemp(prefix="realm_soak_"))
  is_passed = False
  try:
    if given.storage == "bucket":
      result = soak_in_bucket(folder, given.faults, seed=given.seed)
    else:
      result = soak_on_disk(folder, counts, seed=given.seed)
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
