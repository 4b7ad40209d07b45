"""Compares what the present tree computes with what a base commit does.

    python -m benchmarks.record
    python -m benchmarks.record --base=COMMIT --json=FILE

Both sides run the commands of `benchmarks/record/steps.py` on this machine, on
a tiny world: a corpus and its update, imported weights and their vectors, every
stage from the same parameters, evaluations, answers, explanations and replies
of the page. Nothing of the package is imported, so that the record outlives
changes of its modules: commands and files are all that it knows. `SPELLINGS` in
that file says what the sides spell differently.

The base runs in a git worktree. Its outputs are kept in --cache_dir, so that
later comparisons run the present tree alone. What both sides start from, such
as the first parameters of each stage, comes from the base. The gradient of step
1 is read from the checkpoint, whose optimizer holds it times a constant.

The table has the largest difference of each output, and exit status 1 says that
one is above its tolerance. `DECIDED` in `steps.py` names differences that are
meant.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks.record import comparison, text
from benchmarks.record.sides import (
  ENVIRONMENT,
  RecordError,
  Side,
  spelled,
  worktree,
)
from benchmarks.record.steps import Step, steps

# What all later work is compared with.
BASE = "215e45d"
_PROJECT_DIR = Path(__file__).resolve().parents[2]
_DONE = "done"


def main(argv: Sequence[str]) -> int:
  """Runs both sides, prints the table, and returns the exit status."""
  flags = _parsed(argv)
  cache_dir = flags.cache_dir.absolute()
  chosen = _chosen(flags.only)
  try:
    base, now = _run(flags, cache_dir, chosen)
  except RecordError as error:
    print(f"record: {error}", file=sys.stderr)
    return 2
  rows = [
    comparison.compare(base, now, step, output)
    for step in chosen
    for output in step.outputs
  ]
  print(_table(rows))
  if flags.json:
    written = [
      {**dataclasses.asdict(row), "is_same": row.is_same} for row in rows
    ]
    flags.json.write_text(json.dumps(written, indent=2) + "\n")
  different = [row for row in rows if not row.is_same and not row.decided]
  print(f"{len(rows)} comparisons with {flags.base}, {len(different)} differ")
  return 1 if different else 0


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.record",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
  parser.add_argument("--base", default=BASE, help=f"commit; {BASE} by default")
  parser.add_argument(
    "--base_python", default=sys.executable, help="interpreter of the base"
  )
  parser.add_argument("--json", type=Path, help="file for the same as JSON")
  parser.add_argument(
    "--cache_dir",
    type=Path,
    default=home / "realm_jax_record",
    help="folder of the base's worktree and of all outputs",
  )
  parser.add_argument(
    "--only", nargs="*", help="steps to compare, with those that they need"
  )
  parser.add_argument(
    "--at_once", type=int, default=os.cpu_count() or 1, help="steps at once"
  )
  return parser.parse_args(argv)


def _chosen(only: Sequence[str] | None) -> list[Step]:
  """Returns the named steps and those that they need, or all."""
  every = steps()
  if not only:
    return every
  if unknown := set(only) - {step.name for step in every}:
    raise SystemExit(
      f"no step {sorted(unknown)}; there are {[step.name for step in every]}"
    )
  wanted = set(only)
  for step in reversed(every):
    if step.name in wanted:
      wanted |= set(step.needs)
  return [step for step in every if step.name in wanted]


def _run(
  flags: argparse.Namespace, cache_dir: Path, chosen: Sequence[Step]
) -> tuple[Side, Side]:
  """Runs the base, if it has not run these steps before, and the tree."""
  commit = subprocess.run(
    ["git", "rev-parse", "--verify", f"{flags.base}^{{commit}}"],
    cwd=_PROJECT_DIR,
    capture_output=True,
    text=True,
    check=False,
  ).stdout.strip()
  if not commit:
    raise RecordError(f"--base={flags.base} is no commit of {_PROJECT_DIR}")
  tree = worktree(_PROJECT_DIR, commit, cache_dir / f"tree-{commit[:12]}")
  shared = (
    cache_dir / f"base-{commit[:12]}-{_digest(flags.base_python, chosen)}"
  )
  outputs = shared / "out"
  base = Side("base", tree, flags.base_python, shared, outputs, outputs)
  if not (shared / _DONE).exists():
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    text.write(shared)
    if failures := base.run(chosen, at_once=flags.at_once):
      raise RecordError("\n".join(failures))
    (shared / _DONE).touch()
  out = cache_dir / "now"
  shutil.rmtree(out, ignore_errors=True)
  now = Side("now", _PROJECT_DIR, sys.executable, shared, out, outputs)
  # What it has not written is missing in the comparison.
  for failure in now.run(chosen, at_once=flags.at_once):
    print(failure, file=sys.stderr)
  return base, now


def _digest(python: str, chosen: Sequence[Step]) -> str:
  """Returns a name of all that the base's outputs depend on but its commit."""
  parts = [python, jax.__version__, np.__version__, repr(ENVIRONMENT)]
  parts.append(Path(text.__file__).read_text())
  for step in chosen:
    commands = [*step.commands, step.beside or ""]
    parts += [spelled(command, "base") for command in commands]
    parts += [step.name, repr(step.requests), repr(step.copies)]
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _table(rows: Sequence[comparison.Row]) -> str:
  """Returns all rows, the differences of which name what differs."""
  lines = []
  for row in rows:
    verdict = "same" if row.is_same else "DIFFERENT"
    if row.decided and not row.is_same:
      verdict = f"decided: {row.decided}"
    cells = (
      row.step,
      row.what,
      f"{row.num_compared}",
      f"{row.difference:.1e}",
      f"{row.tolerance:.0e}",
      f"{verdict}{'' if row.is_same else f' ({row.where})'}",
      row.how,
    )
    lines.append(cells)
  heads = (
    "step",
    "what",
    "compared",
    "largest",
    "tolerance",
    "",
    "relative to",
  )
  widths = [
    max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads))
  ]
  return "\n".join(
    "  ".join(
      cell.ljust(width) for cell, width in zip(line, widths, strict=True)
    ).rstrip()
    for line in (heads, *lines)
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
