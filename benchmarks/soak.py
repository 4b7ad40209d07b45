"""Injects faults into a run at random moments and checks its result.

    python -m benchmarks.soak --json=soak.json

A run with WAIT_FOR_GENERATIONS and exact search is done once undisturbed. Then
the same run is repeated while its processes are killed, its published files are
damaged or removed, and its builder is suspended, run twice or meets a full
disk. Every process that ends is restarted, until the run is complete. Its loss
curve and last checkpoint must equal those of the undisturbed run bit for bit. A
third run searches ScaNN, whose process is killed as well. It is a problem if a
trainer exits that could have continued, or if a run is too short for its
faults.
"""

import argparse
import collections
import dataclasses
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import demo_corpus
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs import faults, run_folder, verdict
from benchmarks.runs.disturbed import CRASH, Disturbed, disturbed
from benchmarks.runs.faults import Fault, InjectedFault
from benchmarks.runs.jobs import JobError, Run, wait_until
from realm_jax.console.table import figures_table
from realm_jax.files.json_file import write_json

_SAVE_EVERY_STEPS = 5
_FAULTS_PER_CHECKPOINT = 3
# Checkpoints at the end without faults, so that no fault comes too late.
_QUIET_CHECKPOINTS = 8
_MODEL = "benchmarks/soak.gin"
# Time limit for the rest of a run after the last fault, on a busy machine.
_COMPLETION_TIMEOUT_SECONDS = 1800.0
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


def draw_faults(
  count: int,
  *,
  kinds: Sequence[str],
  num_steps: int,
  cycle_seconds: float,
  seed: int,
) -> list[Fault]:
  """Draws random faults, equally many of each kind, spread over a run.

  Three in four come at a random time within two cycles after a random
  checkpoint (a cycle is save, embed, publish, load and the steps between
  checkpoints). The others come soon after the previous fault, while processes
  are starting. The last checkpoints have no faults, so that none comes too
  late.
  """
  rng = np.random.default_rng(seed)
  limit = num_steps - _QUIET_CHECKPOINTS * _SAVE_EVERY_STEPS
  steps = np.sort(rng.integers(0, limit, count)).tolist()
  drawn_kinds = rng.permutation(np.resize(kinds, count)).tolist()
  drawn = []
  for step, kind in zip(steps, drawn_kinds, strict=True):
    checkpoint, delay = step, rng.uniform(0, 2 * cycle_seconds)
    if drawn and rng.random() < 0.25:
      checkpoint, delay = drawn[-1].checkpoint, rng.uniform(0, 5)
    drawn.append(Fault(kind, checkpoint, delay, int(rng.integers(1 << 31))))
  return drawn


def complete(here: Disturbed) -> None:
  """Waits for the end of training, and terminates the builders.

  Raises:
    JobError: A job failed.
  """
  wait_until(
    here.is_over,
    what="end of training",
    timeout_seconds=_COMPLETION_TIMEOUT_SECONDS,
  )
  for name, job in here.jobs.items():
    # A builder that is still importing does not handle SIGTERM yet.
    if name != "trainer" and (code := job.terminate()) not in (
      0,
      -signal.SIGTERM,
    ):
      here.note_end(name, code)


@dataclasses.dataclass
class Outcome:
  """Result of a run.

  Attributes:
    met: Injected faults, in order.
    lines: Last line of each process that ended by itself.
    problems: Events that should not have happened.
    is_through: Whether the run was completed.
  """

  met: list[InjectedFault] = dataclasses.field(default_factory=list)
  lines: list[str] = dataclasses.field(default_factory=list)
  problems: list[str] = dataclasses.field(default_factory=list)
  is_through: bool = False


def finish(run: Run, planned: Sequence[Fault] = ()) -> Outcome:
  """Runs trainer and builder to the end while faults are injected.

  Args:
    run: Run with an empty folder.
    planned: Faults in order; it is a problem if the run ends before the last.
  """
  outcome = Outcome()
  with disturbed(run) as here:
    try:
      for fault in planned:
        met = faults.inject(here, fault)
        if outcome.met:
          outcome.met[-1].observed = here.observed()
        if met is None:
          break
        outcome.met.append(met)
        print(f"{len(outcome.met):4} {fault.kind}: {met.what}", flush=True)
      complete(here)
      outcome.is_through = True
    except JobError as error:
      outcome.problems.append(str(error))
    if outcome.met:
      _add(outcome.met[-1].observed, here.observed())
    outcome.lines = here.lines
    outcome.problems += here.problems
  if outcome.is_through:
    outcome.problems += verdict.problems(run)
    if len(outcome.met) < len(planned):
      outcome.problems.append(
        f"the run ended before {len(planned) - len(outcome.met)} faults"
      )
  return outcome


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
  for name, count in more.items():
    counts[name] = counts.get(name, 0) + count


def _run(directory: Path, name: str, index: str, *, num_steps: int) -> Run:
  folder = directory / f"{name}_{index.lower()}"
  tree = dataclasses.asdict(_TREE) if index == "SCANN" else {}
  return Run(
    directory=folder,
    corpus_dir=directory / "corpus",
    model=_MODEL,
    num_steps=num_steps,
    save_every_steps=_SAVE_EVERY_STEPS,
    index=index,
    index_settings={f"scann.ScannConfig.{n}": v for n, v in tree.items()},
    environment={
      # Otherwise each start of a trainer would compile for ten seconds.
      "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      **os.environ,
      # This variable identifies the processes of the run.
      "REALM_SOAK": str(folder),
    },
  )


def soak(
  directory: Path, counts: dict[str, int], *, seed: int
) -> dict[str, Any]:
  """Does the undisturbed run, and a disturbed one for each index.

  Args:
    directory: Empty folder.
    counts: Number of faults by index, exact search first.
    seed: Seed of the faults.
  """
  demo_corpus.make_corpus(directory, scale=0.25)
  num_steps = {index: _num_steps(count) for index, count in counts.items()}
  undisturbed_steps = next(iter(num_steps.values()))
  unbroken = _run(directory, "unbroken", "EXACT", num_steps=undisturbed_steps)
  print(f"{undisturbed_steps} undisturbed steps …", flush=True)
  began = time.monotonic()
  undisturbed = finish(unbroken)
  seconds = time.monotonic() - began
  result: dict[str, Any] = {
    "unbroken": {
      "steps": undisturbed_steps,
      "seconds": round(seconds, 1),
      "problems": undisturbed.problems,
    },
    "runs": [],
  }
  if undisturbed.problems:
    return result
  print(f"… took {seconds:.0f} s", flush=True)
  for index, count in counts.items():
    print(f"{index}: {count} faults", flush=True)
    planned = draw_faults(
      count,
      kinds=[k for k in faults.KINDS if index == "SCANN" or k != CRASH],
      num_steps=num_steps[index],
      cycle_seconds=seconds * _SAVE_EVERY_STEPS / undisturbed_steps,
      seed=seed,
    )
    broken = _run(directory, "broken", index, num_steps=num_steps[index])
    expected = unbroken if index == "EXACT" else None
    result["runs"].append(_break(broken, planned, expected=expected))
  return result


def _num_steps(count: int) -> int:
  checkpoints = max(6, count // _FAULTS_PER_CHECKPOINT) + _QUIET_CHECKPOINTS
  return checkpoints * _SAVE_EVERY_STEPS


def _break(
  run: Run, planned: Sequence[Fault], *, expected: Run | None
) -> dict[str, Any]:
  """Runs with faults, and compares the result with the expected run, if any."""
  began = time.monotonic()
  outcome = finish(run, planned)
  seconds = time.monotonic() - began
  found: dict[str, Any] = {
    "index": run.index,
    "planned": len(planned),
    "faults": [dataclasses.asdict(met) for met in outcome.met],
    "stopped_with": outcome.lines,
    "problems": outcome.problems,
    "refused_generations": verdict.refusals(run),
    "steps": run.num_steps,
    "seconds": round(seconds, 1),
  }
  if outcome.is_through:
    found["left_damaged"] = verdict.damaged_generations(run)
    found["swaps"] = len({row["generation"] for row in verdict.curve(run)}) - 1
    if expected is not None:
      found["differences"] = verdict.differences(expected, run)
  return found


def by_kind(done: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
  """Counts the faults of each kind, and what was observed after them."""
  kinds: dict[str, dict[str, int]] = {}
  for met in done:
    counts = kinds.setdefault(
      met["fault"]["kind"], {"faults": 0, "mid-write": 0}
    )
    counts["faults"] += 1
    counts["mid-write"] += bool(met["half_written"])
    if met["what"] == faults.NOTHING:
      _add(counts, {"nothing to hit": 1})
    _add(counts, met["observed"])
  return kinds


def table(kinds: dict[str, dict[str, int]]) -> str:
  """Formats a table with a line for each kind of fault."""
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
  """Returns whether no run had a problem or a difference."""
  judged = [result["unbroken"], *result["runs"]]
  return bool(result["runs"]) and not any(
    one["problems"] or one.get("differences") for one in judged
  )


def _first_lines(texts: Sequence[str]) -> str:
  return "; ".join(text.partition("\n")[0] for text in texts[:5]) or "none"


def report(result: dict[str, Any]) -> str:
  """Formats the result as text."""
  text = [f"unbroken: {result['unbroken']['seconds']} s"]
  if result["unbroken"]["problems"]:
    text.append(_first_lines(result["unbroken"]["problems"]))
  for run in result["runs"]:
    text += [f"\n{run['index']}", table(by_kind(run["faults"]))]
    lines = collections.Counter(
      re.sub(r"\S*/\S*|\d+", "…", line) for line in run["stopped_with"]
    )
    text += [f"{count:4} × {line}" for line, count in lines.most_common()]
    differences = run.get("differences")
    summary = {
      "faults": f"{len(run['faults'])} of {run['planned']}",
      "swaps": run.get("swaps", "–"),
      "damaged generations refused": len(run["refused_generations"]),
      "problems": _first_lines(run["problems"]),
      "differences": "not compared"
      if differences is None
      else _first_lines(differences),
      "seconds": run["seconds"],
    }
    text.append(figures_table(summary))
  return "\n".join([*text, f"\npassed: {passed(result)}"])


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the soak test; returns 1 if anything went wrong."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--faults", type=int, default=200, help="number of faults"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
  parser.add_argument(
    "--indexes",
    nargs="+",
    choices=_SHARES,
    default=list(_SHARES),
    help="indexes to run with; by default all",
  )
  run_folder.add_options(parser)
  given = parser.parse_args(argv)
  whole = sum(_SHARES[index] for index in given.indexes)
  counts = {
    index: round(given.faults * share / whole)
    for index, share in _SHARES.items()
    if index in given.indexes
  }
  with run_folder.opened(
    parser, given.output_dir, prefix="realm_soak_"
  ) as folder:
    result = soak(folder.path, counts, seed=given.seed)
    folder.is_passed = passed(result)
    if given.json:
      met = [met for run in result["runs"] for met in run["faults"]]
      by_kind_met = {"by_kind": by_kind(met), "passed": folder.is_passed}
      write_json(given.json, result | by_kind_met)
    print(report(result))
  return 0 if folder.is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
