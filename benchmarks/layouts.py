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
import dataclasses
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data import demo_corpus
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs import comparison, faults
from benchmarks.runs.groups import (
  HEARTBEAT_TIMEOUT_SECONDS,
  GroupRun,
  Layout,
  started,
  wait_for_end,
)
from benchmarks.runs.jobs import Job, JobError, wait_until
from benchmarks.runs.timed_decisions import file_of
from realm_jax.console.table import figures_table
from realm_jax.files.json_file import write_json

REFERENCE = Layout(1, 1)
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
_DISTURBED = Layout(2, 4, fsdp=2)
_STAGES = (
  ("inverse_cloze", None),
  ("reading", None),
  ("pretrain", "EXACT"),
  ("pretrain", "SCANN"),
  ("open_qa", "EXACT"),
  ("open_qa", "SCANN"),
)
_NUM_STEPS = 20
_RESUME_STEP = 10
_TOLERANCE = 1e-4
_AGREEMENT_TARGET = 0.03
_MODEL = "benchmarks/soak.gin"
_DISTURBED_STEPS = 40
_AGREEMENT_STEPS = 80
_SKIPPED_STEPS = 10
# jax looks for dead processes now and then, and a process takes time to end.
_GRACE_SECONDS = 10.0
# A given tree, because so few blocks would otherwise be searched without one.
_TREE = {
  f"scann.ScannConfig.{name}": value
  for name, value in dataclasses.asdict(
    fixed_tree(
      16,
      num_leaves_searched=8,
      num_reordered=64,
      reordering="float32",
      reuse=True,
    )
  ).items()
}
_SWAP = re.compile(r"generation \d+ replaces \d+ at step \d+")
_PREEMPTED = re.compile(r"Preempted: checkpoint saved at step (\d+)")
_CONTINUED = re.compile(r"continuing from checkpoint (\d+)")
# In the message with which jax ends a process, after another one has died.
_DEAD = re.compile(r"stopped sending heartbeats\):\n(\d+)\n")
_FELL_BACK = re.compile(r"(process \d+): .*: falling back to (.*)")

Row = dict[str, Any]


class LayoutRuns:
  """Runs of the stages in all layouts, each of which is done at most once.

  Args:
    directory: Empty folder, which is given a corpus and the runs.
  """

  def __init__(self, directory: Path):
    self.directory = directory
    self.corpus_dir = demo_corpus.make_corpus(directory, scale=0.25)
    self._done: dict[str, GroupRun] = {}

  def run(self, layout: Layout, stage: str, index: str | None) -> GroupRun:
    """Returns the finished run of a stage.

    All layouts search the generation of the reference, which is built from
    checkpoint 0.
    """
    name = _folder_name(layout, stage, index)
    if name not in self._done:
      run = self.new(name, layout, stage, index)
      if index is None:
        train(run)
      elif layout == REFERENCE:
        _train_and_index(run)
      else:
        run.copy_start_of(self.run(REFERENCE, stage, index))
        train(run)
      self._done[name] = run
    return self._done[name]

  def new(
    self,
    name: str,
    layout: Layout,
    stage: str,
    index: str | None,
    **settings: Any,
  ) -> GroupRun:
    """Returns a run that was not started."""
    return GroupRun(
      directory=self.directory / name,
      corpus_dir=self.corpus_dir,
      recipe=stage,
      model=_MODEL,
      layout=layout,
      settings={
        "NUM_STEPS": _NUM_STEPS,
        "SAVE_EVERY_STEPS": 5,
        "KEEP_CHECKPOINTS": _NUM_STEPS,
        "BATCH_SIZE": 8,
        "LEARNING_RATE": 1e-3,
        "WARMUP_STEPS": 2,
        **self._stage_settings(stage),
        **settings,
      },
      index=index or "EXACT",
      index_settings=_TREE if index == "SCANN" else {},
      environment={
        # Otherwise each start of a trainer would compile for ten seconds.
        "JAX_COMPILATION_CACHE_DIR": str(self.directory / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      },
    )

  def _stage_settings(self, stage: str) -> dict[str, Any]:
    def before(earlier: str, index: str | None = None) -> Path:
      return self.run(REFERENCE, earlier, index).model_dir

    if stage == "pretrain":
      return {
        "NUM_CANDIDATES": 4,
        "INITIAL_CHECKPOINT": before("inverse_cloze"),
        "INITIAL_READER": before("reading"),
      }
    if stage == "open_qa":
      questions = self.directory / "world" / "questions-train.jsonl"
      return {
        "NUM_SEARCHED": 20,
        "NUM_READ": 3,
        "TRAIN_QUESTIONS": questions,
        "INITIAL_CHECKPOINT": before("pretrain", "EXACT"),
      }
    return {}


def _folder_name(layout: Layout, stage: str, index: str | None) -> str:
  words = [stage, (index or "").lower(), str(layout).replace("×", "x")]
  return "_".join("_".join(words).split())


def train(run: GroupRun) -> None:
  """Runs a trainer to its end."""
  group = run.trainers()
  with started(*group):
    wait_for_end(group)


def _train_and_index(run: GroupRun) -> None:
  """Runs a trainer to its end, which waits for its one generation."""
  group, builder = run.trainers(), run.builder("--once")
  with started(*group):
    _wait_for_checkpoint(run, 0, *group)
    with started(builder):
      wait_for_end(group, builder)


def _wait_for_checkpoint(run: GroupRun, step: int, *jobs: Job) -> None:
  wait_until(
    lambda: max(run.checkpoint_steps(), default=-1) >= step,
    what=f"checkpoint {step}",
    jobs=jobs,
  )


def compare_losses(runs: LayoutRuns) -> list[Row]:
  """Trains each stage in each layout, and compares it with the reference."""
  return [
    compare_stage(runs, layout, stage, index)
    for stage, index in _STAGES
    for layout in LAYOUTS
    # Plain data parallelism is also part of the others.
    if layout != PLAIN or (stage, index) == ("pretrain", "EXACT")
  ]


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
  return _shown(row)


def compare_resumed(runs: LayoutRuns) -> list[Row]:
  """Continues a checkpoint of one layout on another, in pre-training."""
  stage, index = "pretrain", "EXACT"
  expected = comparison.losses(runs.run(REFERENCE, stage, index).model_dir)
  found = []
  for saved_on, layout in _RESUMED:
    source = runs.run(saved_on, stage, index)
    name = _folder_name(layout, f"resumed_{len(found)}", index)
    run = runs.new(name, layout, stage, index)
    run.copy_start_of(source, step=_RESUME_STEP)
    train(run)
    difference = comparison.greatest_difference(
      expected, comparison.losses(run.model_dir)
    )
    continued = _CONTINUED.findall(_log(run, 0))
    found.append(
      _shown(
        {
          "layout": f"{saved_on} → {layout}",
          "stage": stage,
          "index": index,
          "loss_difference": difference,
          "passed": difference <= _TOLERANCE
          and continued == [str(_RESUME_STEP)],
        }
      )
    )
  return found


def _log(run: GroupRun, process: int) -> str:
  log = run.directory / f"trainer{process}.log"
  return log.read_text(errors="replace")


def _logs(run: GroupRun) -> list[str]:
  return [_log(run, process) for process in range(run.layout.processes)]


def _wait_for_exits(group: Sequence[Job]) -> list[int | None]:
  wait_until(
    lambda: all(job.exit_code() is not None for job in group),
    what="end of the group",
  )
  return [job.exit_code() for job in group]


def _undisturbed(runs: LayoutRuns, name: str, **settings: Any) -> GroupRun:
  """Returns a run that waits for generations, which it swaps in."""
  return runs.new(
    name,
    _DISTURBED,
    "pretrain",
    "EXACT",
    NUM_STEPS=_DISTURBED_STEPS,
    SAVE_EVERY_STEPS=5,
    LAG_STEPS=5,
    WAIT_FOR_GENERATIONS=True,
    KEEP_CHECKPOINTS=_DISTURBED_STEPS,
    **settings,
  )


def swap(runs: LayoutRuns) -> tuple[Row, GroupRun]:
  """Swaps generations in while training; returns the run as well."""
  run = _undisturbed(runs, "undisturbed")
  group, builder = run.trainers(), run.builder(mode="every")
  with started(*group, builder):
    wait_for_end(group, builder)
  swaps = [_SWAP.findall(log) for log in _logs(run)]
  generations = {row["generation"] for row in comparison.rows(run.model_dir)}
  is_same = all(one == swaps[0] for one in swaps) and bool(swaps[0])
  # The metric is the mean over the processes.
  is_one = generations == set(range(0, _DISTURBED_STEPS - 5, 5))
  row = {
    "fault": "generations swapped in",
    "observed": f"{len(swaps[0])} swaps, each at the same step in all "
    f"processes: {is_same and is_one}",
    "passed": is_same and is_one,
  }
  return _shown(row), run


def crash_search(runs: LayoutRuns) -> Row:
  """Kills the search process of process 1 while generations come."""
  run = dataclasses.replace(
    _undisturbed(runs, "crashed"), index="SCANN", index_settings=_TREE
  )
  group, builder = run.trainers(), run.builder(mode="every")
  with started(*group, builder):
    _wait_for_checkpoint(run, 10, *group, builder)
    wait_until(
      lambda: bool(faults.searching(group[1].pid)), what="process that searches"
    )
    for process in faults.searching(group[1].pid):
      os.kill(process, signal.SIGKILL)
    wait_for_end(group, builder)
  logs = _logs(run)
  fallbacks = [_FELL_BACK.findall(log) for log in logs]
  swaps = [_SWAP.findall(log) for log in logs]
  is_same = all(one == fallbacks[0] for one in fallbacks)
  is_named = bool(fallbacks[0]) and fallbacks[0][0][0] == "process 1"
  goes_on = all(one == swaps[0] for one in swaps) and bool(swaps[0])
  return _shown(
    {
      "fault": "search process of process 1 killed",
      "observed": f"fallbacks of all processes: {fallbacks}; "
      f"{len(swaps[0])} swaps",
      "passed": is_same and is_named and goes_on,
    }
  )


def terminate_one(runs: LayoutRuns, undisturbed: GroupRun) -> Row:
  """Sends SIGTERM to process 1, and starts all again."""
  run = _undisturbed(runs, "terminated")
  group, builder = run.trainers(), run.builder(mode="every")
  with started(builder):
    with started(*group):
      _wait_for_checkpoint(run, 15, *group, builder)
      began = time.monotonic()
      os.kill(group[1].pid, signal.SIGTERM)
      codes = _wait_for_exits(group)
      seconds = time.monotonic() - began
    last = run.checkpoint_steps()[-1]
    saved = [_PREEMPTED.findall(log) for log in _logs(run)]
    train(run)
  continued = [_CONTINUED.findall(log) for log in _logs(run)]
  difference = _difference(undisturbed, run)
  wanted = [[str(last)]] * len(group)
  return _shown(
    {
      "fault": "SIGTERM to process 1",
      "observed": f"exit codes {codes} after {seconds:.1f} s, checkpoint "
      f"{last} saved; the run goes on from {continued[0]}, losses within "
      f"{difference:.1e}",
      "passed": codes == [0] * len(group)
      and saved == continued == wanted
      and difference <= _TOLERANCE,
    }
  )


def kill_one(runs: LayoutRuns, undisturbed: GroupRun) -> Row:
  """Sends SIGKILL to process 1, and starts all again."""
  run = _undisturbed(runs, "killed")
  group, builder = run.trainers(), run.builder(mode="every")
  with started(builder):
    with started(*group):
      _wait_for_checkpoint(run, 15, *group, builder)
      began = time.monotonic()
      os.kill(group[1].pid, signal.SIGKILL)
      codes = _wait_for_exits(group)
      seconds = time.monotonic() - began
    log = _log(run, 0)
    last = run.checkpoint_steps()[-1]
    train(run)
  difference = _difference(undisturbed, run)
  dead = _DEAD.findall(log)
  return _shown(
    {
      "fault": "SIGKILL to process 1",
      "observed": f"process 0 exits with {codes[0]} after {seconds:.1f} s, "
      f"naming {dead}; the run goes on from {last}, losses within "
      f"{difference:.1e}",
      "passed": codes[0] != 0
      and seconds <= HEARTBEAT_TIMEOUT_SECONDS + _GRACE_SECONDS
      and dead == ["1"]
      and difference <= _TOLERANCE,
    }
  )


def _difference(expected: GroupRun, got: GroupRun) -> float:
  return comparison.greatest_difference(
    comparison.losses(expected.model_dir), comparison.losses(got.model_dir)
  )


def inject_faults(runs: LayoutRuns) -> list[Row]:
  """Injects each fault into a run of its own."""
  row, undisturbed = swap(runs)
  return [
    row,
    crash_search(runs),
    terminate_one(runs, undisturbed),
    kill_one(runs, undisturbed),
  ]


def measure_agreement(runs: LayoutRuns) -> list[Row]:
  """Measures the decisions of two processes in the demo's pre-training."""
  directory = runs.directory / "agreement"
  run = GroupRun(
    directory=directory,
    corpus_dir=demo_corpus.make_corpus(directory),
    recipe="pretrain",
    model="gin/experiments/demo/model.gin",
    layout=Layout(2, 1),
    settings={
      "NUM_STEPS": _AGREEMENT_STEPS,
      "SAVE_EVERY_STEPS": _AGREEMENT_STEPS,
      "BATCH_SIZE": 16,
      "NUM_CANDIDATES": 8,
      "LEARNING_RATE": 2e-4,
    },
    index="SCANN",
    index_settings=_TREE,
    trainer_module="benchmarks.runs.timed_decisions",
  )
  _train_and_index(run)
  times = [
    comparison.read_times(file_of(run.model_dir, process))
    for process in range(run.layout.processes)
  ]
  steps = [row["step_seconds"] for row in comparison.rows(run.model_dir)]
  found = comparison.agreement_overhead(
    times, steps, skipped_steps=_SKIPPED_STEPS
  )
  passed = found["share"] <= _AGREEMENT_TARGET
  return [_shown({"layout": str(run.layout), **found, "passed": passed})]


_PARTS: dict[str, Callable[[LayoutRuns], list[Row]]] = {
  "losses": compare_losses,
  "resume": compare_resumed,
  "faults": inject_faults,
  "agreement": measure_agreement,
}


def _shown(row: Row) -> Row:
  """Prints a row as soon as it is known, and returns it."""
  print(line(row), flush=True)
  return row


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
  parser.add_argument(
    "--output_dir",
    type=Path,
    help="empty folder for runs and logs, which are kept",
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  # On SIGTERM, kill the processes of the run as well.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
  directory: Path | None = given.output_dir
  if directory is not None and directory.exists() and any(directory.iterdir()):
    parser.error(f"--output_dir={directory} is not empty; name another folder")
  if directory is None:
    directory = Path(tempfile.mkdtemp(prefix="realm_layouts_"))
  is_passed = False
  began = time.monotonic()
  result: dict[str, Any] = {}
  try:
    runs = LayoutRuns(directory)
    for part in given.part:
      print(f"{part}:", flush=True)
      result[part] = _PARTS[part](runs)
    is_passed = all(
      row["passed"] for part in given.part for row in result[part]
    )
  except JobError as error:
    print(error)
  finally:
    result |= {
      "seconds": round(time.monotonic() - began, 1),
      "passed": is_passed,
    }
    if given.json:
      write_json(given.json, result)
    print(f"passed: {is_passed}, in {result['seconds']} s")
    if is_passed and given.output_dir is None:
      shutil.rmtree(directory)
    else:
      print(f"runs and logs are kept in {directory}")
  return 0 if is_passed else 1


if __name__ == "__main__":
  sys.exit(main())
