"""Compares runs of several processes with the run of one device.

    python -m benchmarks.layouts --json=layouts.json

Every stage is trained by real processes on one machine, in several layouts of
processes and simulated devices, which communicate by gloo. The losses of each
layout must be those of one process with one device, and with exact search the
retrieved blocks as well. A checkpoint of one layout must continue on another.
Faults are then injected into a group of processes, and the cost of the
decisions that the processes take together is measured.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.faults import of_one_process
from benchmarks.faults.of_one_process import Row
from benchmarks.runs import comparison, decision_cost, run_folder
from benchmarks.runs.groups import Layout
from benchmarks.runs.jobs import JobError
from benchmarks.runs.layout_runs import (
  REFERENCE,
  LayoutRuns,
  folder_name,
  log_of,
  train,
)
from realm_jax.console.table import figures_table
from realm_jax.files.json_file import write_json

PLAIN = Layout(2, 4)
LAYOUTS = (
  Layout(1, 8, fsdp=2, model=2),
  PLAIN,
  Layout(2, 4, fsdp=4),
  Layout(4, 2, model=2),
)
# Layouts of a checkpoint, and those on which it is continued.
_RESUMED = (
  (LAYOUTS[0], LAYOUTS[2]),
  (LAYOUTS[2], REFERENCE),
  (LAYOUTS[3], LAYOUTS[1]),
)
_STAGES = (
  ("inverse_cloze", None),
  ("reading", None),
  ("pretrain", "EXACT"),
  ("pretrain", "SCANN"),
  ("open_qa", "EXACT"),
  ("open_qa", "SCANN"),
)
_RESUME_STEP = 10
_TOLERANCE = 1e-4


def compare_losses(runs: LayoutRuns) -> Iterator[Row]:
  """Trains each stage in each layout, and compares it with the reference."""
  for stage, index in _STAGES:
    for layout in LAYOUTS:
      # Plain data parallelism is also part of the others.
      if layout != PLAIN or (stage, index) == ("pretrain", "EXACT"):
        yield compare_stage(runs, layout, stage, index)


def compare_stage(
  runs: LayoutRuns, layout: Layout, stage: str, index: str | None
) -> Row:
  """Trains a stage in a layout, and compares it with the reference."""
  reference = runs.run(REFERENCE, stage, index).model_dir
  began = time.monotonic()
  model_dir = runs.run(layout, stage, index).model_dir
  row: Row = {
    "layout": str(layout),
    "stage": stage,
    "index": index,
    "loss_difference": comparison.greatest_difference(
      comparison.losses(reference), comparison.losses(model_dir)
    ),
    "seconds": round(time.monotonic() - began, 1),
  }
  row["passed"] = row["loss_difference"] <= _TOLERANCE
  if index is not None:
    ids = comparison.differing_ids(
      comparison.retrieved(reference), comparison.retrieved(model_dir)
    )
    row["ids"] = ids._asdict()
    if index == "EXACT":
      row["passed"] &= ids.compared > 0 and ids.not_ties == 0
  return row


def compare_resumed(runs: LayoutRuns) -> Iterator[Row]:
  """Continues a checkpoint of one layout on another, in pre-training."""
  stage, index = "pretrain", "EXACT"
  expected = comparison.losses(runs.run(REFERENCE, stage, index).model_dir)
  for number, (saved_on, layout) in enumerate(_RESUMED):
    source = runs.run(saved_on, stage, index)
    name = folder_name(layout, f"resumed_{number}", index)
    run = runs.new(name, layout, stage, index)
    run.copy_start_of(source, step=_RESUME_STEP)
    train(run)
    difference = comparison.greatest_difference(
      expected, comparison.losses(run.model_dir)
    )
    wanted = f"continuing from checkpoint {_RESUME_STEP} "
    yield {
      "layout": f"{saved_on} → {layout}",
      "stage": stage,
      "index": index,
      "loss_difference": difference,
      "passed": difference <= _TOLERANCE and wanted in log_of(run, 0),
    }


_PARTS: dict[str, Callable[[LayoutRuns], Iterable[Row]]] = {
  "losses": compare_losses,
  "resume": compare_resumed,
  "faults": of_one_process.inject,
  "agreement": decision_cost.measure,
}


def line(row: Row) -> str:
  """Formats a row for the table of its part."""
  word = "ok" if row["passed"] else "FAIL"
  if "fault" in row:
    return f"{word:<5} {row['fault']}: {row['observed']}"
  if "loss_difference" in row:
    text = (
      f"{word:<5} {row['layout']:<32} {row['stage']:<14} "
      f"{row['index'] or '–':<6} losses within {row['loss_difference']:.1e}"
    )
    if ids := row.get("ids"):
      text += (
        f", {ids['differ']} of {ids['compared']} ids differ, "
        f"{ids['not_ties']} without a tie"
      )
    return text
  figures = {name: row[name] for name in row if name != "passed"}
  return f"{figures_table(figures)}\n{word}"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the benchmark; returns 1 if anything differs or fails."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--part",
    nargs="+",
    choices=_PARTS,
    default=list(_PARTS),
    help="what to run; by default everything",
  )
  run_folder.add_options(parser)
  given = parser.parse_args(argv)
  began = time.monotonic()
  result: dict[str, Any] = {}
  with run_folder.opened(
    parser, given.output_dir, prefix="realm_layouts_"
  ) as folder:
    try:
      runs = LayoutRuns(folder.path)
      for part in given.part:
        print(f"{part}:", flush=True)
        rows = result[part] = []
        for row in _PARTS[part](runs):
          print(line(row), flush=True)
          rows.append(row)
      folder.is_passed = all(
        row["passed"] for part in given.part for row in result[part]
      )
    except JobError as error:
      print(error)
    seconds = round(time.monotonic() - began, 1)
    if given.json:
      write_json(
        given.json, result | {"seconds": seconds, "passed": folder.is_passed}
      )
    print(f"passed: {folder.is_passed}, in {seconds} s")
  return 0 if folder.is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
