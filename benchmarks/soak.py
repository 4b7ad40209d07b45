"""Lets every fault come upon a run at random moments; nothing may change.

    python -m benchmarks.soak --json=soak.json

A run in the waiting mode is done once in peace. Then the same run is done
again while its processes are killed, its published files damaged or removed,
its builder held up, doubled or left without room; whatever ends is started
again, until the run is through. Once with exact search, where loss curve and
last checkpoint must be those of the unbroken run bit for bit, and once with
ScaNN, whose process is killed, too.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import demo_corpus, faults
from benchmarks.faults import Disturbed, Fault, Met
from benchmarks.jobs import JobError, Run, wait_until
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.evaluation import outputs
from realm_jax.generations.inspection import Place

# The clock's, not the run's.
_TIMINGS = ("step_seconds", "examples_per_second", "search_ms", "gather_ms")
# What the watcher logs of a generation that it has verified.
_VERIFIED = re.compile(r"generation (\d+) is verified and loaded")
_REFUSAL = "is not used"
_SAVE_EVERY_STEPS = 5
_KEPT_CHECKPOINTS = 3
_FAULTS_PER_CHECKPOINT = 2
_MODEL = "benchmarks/soak.gin"
# Which share of the faults comes upon a run with which index.
_SHARES = {"EXACT": 0.75, "SCANN": 0.25}


def draw_faults(
  count: int,
  *,
  kinds: Sequence[str],
  num_steps: int,
  cycle_seconds: float,
  seed: int,
) -> list[Fault]:
  """Random faults, as many of each kind, spread over a run.

  Three in four come some part of two cycles after a random checkpoint (a
  cycle is save, embed, publish, load and so many steps), the others soon
  after the one before, while processes are starting.
  """
  rng = np.random.default_rng(seed)
  steps = np.sort(rng.integers(0, round(0.9 * num_steps), count)).tolist()
  drawn_kinds = rng.permutation(np.resize(kinds, count)).tolist()
  drawn = []
  for step, kind in zip(steps, drawn_kinds, strict=True):
    checkpoint, delay = step, rng.uniform(0, 2 * cycle_seconds)
    if drawn and rng.random() < 0.25:
      checkpoint, delay = -1, rng.uniform(0, 5)
    drawn.append(Fault(kind, checkpoint, delay, int(rng.integers(1 << 31))))
  return drawn


def complete(here: Disturbed) -> None:
  """Waits for the end of training, and tells the builders to stop.

  Raises:
    JobError: a job failed.
  """
  wait_until(here.is_over, what="end of training")
  for name, job in here.jobs.items():
    if name != "trainer" and (code := job.terminate()):
      raise JobError(f"the {name} ended with {code}:\n{job.tail()}")


def finish(
  run: Run, planned: Iterable[Fault] = ()
) -> tuple[list[Met], list[str]]:
  """Runs trainer and builder to the end, whatever comes upon them.

  Args:
    run: whose folder is empty.
    planned: in order; those past the end of the run are left out.

  Returns:
    The faults that were met, and the last lines of what stopped by itself.
  """
  done: list[Met] = []
  with faults.disturbed(run) as here:
    for fault in planned:
      met = faults.inject(here, fault)
      if done:
        done[-1].observed = here.observed()
      if met is None:
        break
      done.append(met)
      print(f"{len(done):4} {fault.kind}: {met.what}", flush=True)
    complete(here)
    if done:
      _add(done[-1].observed, here.observed())
    return done, here.lines


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
  for name, count in more.items():
    counts[name] = counts.get(name, 0) + count


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
  found = Place.of(run.model_dir, None).look(checksums=True)
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


def soak(
  directory: Path, index: str, *, count: int, seed: int
) -> dict[str, Any]:
  """The unbroken run, the broken one, and what they differ in."""
  num_steps = max(6, count // _FAULTS_PER_CHECKPOINT) * _SAVE_EVERY_STEPS

  def run(name: str) -> Run:
    folder = directory / f"{name}_{index.lower()}"
    return Run(
      directory=folder,
      corpus_dir=directory / "corpus",
      model=_MODEL,
      num_steps=num_steps,
      save_every_steps=_SAVE_EVERY_STEPS,
      index=index,
      # By which its processes are known.
      environment={**os.environ, "REALM_SOAK": str(folder)},
    )

  unbroken, broken = run("unbroken"), run("broken")
  print(f"{index}: {num_steps} steps in peace …", flush=True)
  began = time.monotonic()
  finish(unbroken)
  unbroken_seconds = time.monotonic() - began
  print(f"… took {unbroken_seconds:.0f} s; now {count} faults", flush=True)
  planned = draw_faults(
    count,
    kinds=[k for k in faults.KINDS if index == "SCANN" or k != "crash search"],
    num_steps=num_steps,
    cycle_seconds=unbroken_seconds * _SAVE_EVERY_STEPS / num_steps,
    seed=seed,
  )
  began = time.monotonic()
  done, lines = finish(broken, planned)
  return {
    "index": index,
    "faults": [dataclasses.asdict(met) for met in done],
    "stopped_with": lines,
    "differences": differences(unbroken, broken),
    "problems": problems(broken),
    "refused_generations": refusals(broken),
    "left_damaged": damaged_generations(broken),
    "steps": num_steps,
    "swaps": len({row["generation"] for row in curve(broken)}) - 1,
    "unbroken_seconds": round(unbroken_seconds, 1),
    "broken_seconds": round(time.monotonic() - began, 1),
  }


def by_kind(done: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
  """How many faults of each kind there were, and what was observed."""
  kinds: dict[str, dict[str, int]] = {}
  for met in done:
    counts = kinds.setdefault(
      met["fault"]["kind"], {"faults": 0, "mid-write": 0}
    )
    counts["faults"] += 1
    counts["mid-write"] += bool(met["half_written"])
    _add(counts, met["observed"])
  return kinds


def table(kinds: dict[str, dict[str, int]]) -> str:
  """A line for each kind."""
  lines = ["kind                faults  mid-write  observed"]
  for kind, counts in sorted(kinds.items()):
    seen = [
      f"{name} {count}"
      for name, count in sorted(counts.items())
      if name not in ("faults", "mid-write")
    ]
    lines.append(
      f"{kind:<18}  {counts['faults']:6}  {counts['mid-write']:9}  "
      f"{', '.join(seen) or '–'}"
    )
  return "\n".join(lines)


def passed(result: dict[str, Any]) -> bool:
  """Whether a run bore it all."""
  is_same = result["index"] != "EXACT" or not result["differences"]
  return is_same and not result["problems"]


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the soak; 1 if anything went wrong."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--faults", type=int, default=200)
  parser.add_argument("--seed", type=int, default=0, help="of the faults")
  parser.add_argument(
    "--indexes", nargs="+", choices=_SHARES, default=list(_SHARES)
  )
  parser.add_argument("--output_dir", help="keeps the runs and their logs")
  parser.add_argument("--json", help="a file to write the result to")
  given = parser.parse_args(argv)
  # So that no process outlives this one.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
  whole = sum(_SHARES[index] for index in given.indexes)
  results = []
  with contextlib.ExitStack() as stack:
    directory = Path(
      given.output_dir
      or stack.enter_context(tempfile.TemporaryDirectory(prefix="realm_soak_"))
    )
    demo_corpus.make_corpus(directory, scale=0.25)
    for index in given.indexes:
      count = round(given.faults * _SHARES[index] / whole)
      results.append(soak(directory, index, count=count, seed=given.seed))
  for result in results:
    print(f"\n{result['index']}")
    print(table(by_kind(result["faults"])))
    lines = collections.Counter(
      re.sub(r"\S*/\S*|\d+", "…", line) for line in result["stopped_with"]
    )
    for line, count in lines.most_common():
      print(f"{count:4} × {line}")
    summary = {
      "faults": len(result["faults"]),
      "swaps": result["swaps"],
      "damaged generations refused": len(result["refused_generations"]),
      "problems": "; ".join(result["problems"][:5]) or "none",
      "differences": "; ".join(result["differences"][:5]) or "none",
      "seconds": f"{result['broken_seconds']} (unbroken "
      f"{result['unbroken_seconds']})",
      "passed": passed(result),
    }
    print(outputs.table(summary))
  is_passed = all(map(passed, results))
  if given.json:
    kinds = by_kind([met for result in results for met in result["faults"]])
    outputs.write_json(
      given.json, {"runs": results, "by_kind": kinds, "passed": is_passed}
    )
  return 0 if is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
