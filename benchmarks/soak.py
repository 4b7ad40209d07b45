"""Lets every fault come upon a run at random moments; nothing may change.

    python -m benchmarks.soak --json=soak.json

A run in the waiting mode is done once in peace, with exact search. Then the
same run is done again while its processes are killed, its published files
damaged or removed, its builder held up, doubled or left without room; whatever
ends is started again, until the run is through. Its loss curve and last
checkpoint must be those of the unbroken run bit for bit. A third run searches
a tree of ScaNN's, whose process is killed, too. A trainer that stops by itself
where it could go on is a problem, and so is a fault for which a run was too
short.
"""

import argparse
import collections
import dataclasses
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import demo_corpus, faults, verdict
from benchmarks.disturbed import CRASH, Disturbed, disturbed
from benchmarks.faults import Fault, Met
from benchmarks.jobs import JobError, Run, wait_until
from realm_jax.console.table import figures_table
from realm_jax.files.json_file import write_json
from realm_jax.indexes.scann.config import fixed_tree

_SAVE_EVERY_STEPS = 5
_FAULTS_PER_CHECKPOINT = 3
# At the end, so that the last faults still meet a run.
_QUIET_CHECKPOINTS = 8
_MODEL = "benchmarks/soak.gin"
# For what is left of a run after the last fault, on a machine that is busy.
_PATIENCE_SECONDS = 1800.0
# Which share of the faults comes upon a run with which index.
_SHARES = {"EXACT": 0.75, "SCANN": 0.25}
# So few blocks would be searched without a tree, and none is worth choosing.
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
  """Random faults, as many of each kind, spread over a run.

  Three in four come some part of two cycles after a random checkpoint (a
  cycle is save, embed, publish, load and so many steps), the others soon
  after the one before, while processes are starting. The last checkpoints
  are left out, so that none comes too late.
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
  """Waits for the end of training, and tells the builders to stop.

  Raises:
    JobError: a job failed.
  """
  wait_until(
    here.is_over, what="end of training", timeout_seconds=_PATIENCE_SECONDS
  )
  for name, job in here.jobs.items():
    # While it is still importing, SIGTERM ends it as it ends any process.
    if name != "trainer" and (code := job.terminate()) not in (
      0,
      -signal.SIGTERM,
    ):
      here.note_end(name, code)


@dataclasses.dataclass
class Account:
  """What came of a run.

  Attributes:
    met: the faults, in order.
    lines: how each process ended that ended by itself.
    problems: what should not have happened; empty where all is well.
    is_through: whether the run came to its end.
  """

  met: list[Met] = dataclasses.field(default_factory=list)
  lines: list[str] = dataclasses.field(default_factory=list)
  problems: list[str] = dataclasses.field(default_factory=list)
  is_through: bool = False


def finish(run: Run, planned: Sequence[Fault] = ()) -> Account:
  """Runs trainer and builder to the end, whatever comes upon them.

  Args:
    run: whose folder is empty.
    planned: in order; those past the end of the run are a problem.
  """
  account = Account()
  with disturbed(run) as here:
    try:
      for fault in planned:
        met = faults.inject(here, fault)
        if account.met:
          account.met[-1].observed = here.observed()
        if met is None:
          break
        account.met.append(met)
        print(f"{len(account.met):4} {fault.kind}: {met.what}", flush=True)
      complete(here)
      account.is_through = True
    except JobError as error:
      account.problems.append(str(error))
    if account.met:
      _add(account.met[-1].observed, here.observed())
    account.lines = here.lines
    account.problems += here.problems
  if account.is_through:
    account.problems += verdict.problems(run)
    if len(account.met) < len(planned):
      account.problems.append(
        f"{len(planned) - len(account.met)} faults would have come too late"
      )
  return account


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
      # Or each start of a trainer would compile the same for ten seconds.
      "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      **os.environ,
      # By which its processes are known.
      "REALM_SOAK": str(folder),
    },
  )


def soak(
  directory: Path, counts: dict[str, int], *, seed: int
) -> dict[str, Any]:
  """The unbroken run, and a broken one for each index.

  Args:
    directory: an empty folder.
    counts: how many faults come upon the run with each index; that with exact
      search comes first.
    seed: of the faults.
  """
  demo_corpus.make_corpus(directory, scale=0.25)
  num_steps = {index: _num_steps(count) for index, count in counts.items()}
  peaceful_steps = next(iter(num_steps.values()))
  unbroken = _run(directory, "unbroken", "EXACT", num_steps=peaceful_steps)
  print(f"{peaceful_steps} steps in peace …", flush=True)
  began = time.monotonic()
  peaceful = finish(unbroken)
  seconds = time.monotonic() - began
  result: dict[str, Any] = {
    "unbroken": {
      "steps": peaceful_steps,
      "seconds": round(seconds, 1),
      "problems": peaceful.problems,
    },
    "runs": [],
  }
  if peaceful.problems:
    return result
  print(f"… took {seconds:.0f} s", flush=True)
  for index, count in counts.items():
    print(f"{index}: {count} faults", flush=True)
    planned = draw_faults(
      count,
      kinds=[k for k in faults.KINDS if index == "SCANN" or k != CRASH],
      num_steps=num_steps[index],
      cycle_seconds=seconds * _SAVE_EVERY_STEPS / peaceful_steps,
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
  """A run upon which faults come, against what it should have been, if any."""
  began = time.monotonic()
  account = finish(run, planned)
  seconds = time.monotonic() - began
  found: dict[str, Any] = {
    "index": run.index,
    "planned": len(planned),
    "faults": [dataclasses.asdict(met) for met in account.met],
    "stopped_with": account.lines,
    "problems": account.problems,
    "refused_generations": verdict.refusals(run),
    "steps": run.num_steps,
    "seconds": round(seconds, 1),
  }
  if account.is_through:
    found["left_damaged"] = verdict.damaged_generations(run)
    found["swaps"] = len({row["generation"] for row in verdict.curve(run)}) - 1
    if expected is not None:
      found["differences"] = verdict.differences(expected, run)
  return found


def by_kind(done: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
  """How many faults of each kind there were, and what was observed."""
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
  """Whether the runs bore it all."""
  judged = [result["unbroken"], *result["runs"]]
  return bool(result["runs"]) and not any(
    one["problems"] or one.get("differences") for one in judged
  )


def _first_lines(texts: Sequence[str]) -> str:
  return "; ".join(text.partition("\n")[0] for text in texts[:5]) or "none"


def report(result: dict[str, Any]) -> str:
  """All of it for people."""
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
  """Runs the soak; 1 if anything went wrong."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--faults", type=int, default=200)
  parser.add_argument("--seed", type=int, default=0, help="of the faults")
  parser.add_argument(
    "--indexes", nargs="+", choices=_SHARES, default=list(_SHARES)
  )
  parser.add_argument(
    "--output_dir", type=Path, help="an empty folder that keeps runs and logs"
  )
  parser.add_argument("--json", help="a file to write the result to")
  given = parser.parse_args(argv)
  directory: Path | None = given.output_dir
  if directory is not None and directory.exists() and any(directory.iterdir()):
    parser.error(f"--output_dir={directory} is not empty; name another folder")
  # So that no process outlives this one.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
  if directory is None:
    directory = Path(tempfile.mkdtemp(prefix="realm_soak_"))
  whole = sum(_SHARES[index] for index in given.indexes)
  counts = {
    index: round(given.faults * share / whole)
    for index, share in _SHARES.items()
    if index in given.indexes
  }
  is_passed = False
  try:
    result = soak(directory, counts, seed=given.seed)
    is_passed = passed(result)
    if given.json:
      met = [met for run in result["runs"] for met in run["faults"]]
      write_json(
        given.json, {**result, "by_kind": by_kind(met), "passed": is_passed}
      )
    print(report(result))
  finally:
    if is_passed and given.output_dir is None:
      shutil.rmtree(directory)
    else:
      print(f"the runs and their logs: {directory}")
  return 0 if is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
