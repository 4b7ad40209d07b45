"""What the decisions cost that processes take together for each step."""

from collections.abc import Iterator, Sequence

from benchmarks.data import demo_corpus
from benchmarks.faults.of_one_process import Row
from benchmarks.runs import comparison
from benchmarks.runs.groups import GroupRun, Layout
from benchmarks.runs.layout_runs import (
  TREE,
  LayoutRuns,
  train,
  train_and_index,
)
from benchmarks.runs.timed_decisions import file_of

_HIGHEST_SHARE = 0.03
_PAIRS = 3
_STEPS = 120
_SKIPPED_STEPS = 10


def measure(runs: LayoutRuns) -> Iterator[Row]:
  """Measures the decisions of two processes in the demo's pre-training.

  Runs whose processes decide each step together alternate with runs in which
  each decides alone.
  """
  corpus_dir = demo_corpus.make_corpus(runs.directory / "agreement_world")
  first: GroupRun | None = None
  together, alone = [], []
  for number in range(2 * _PAIRS):
    is_alone = bool(number % 2)
    run = GroupRun(
      directory=runs.directory / f"agreement_{number}",
      corpus_dir=corpus_dir,
      recipe="pretrain",
      model="gin/experiments/demo/model.gin",
      layout=Layout(2, 1),
      settings={
        "NUM_STEPS": _STEPS,
        "SAVE_EVERY_STEPS": _STEPS,
        "BATCH_SIZE": 16,
        "NUM_CANDIDATES": 8,
        "LEARNING_RATE": 2e-4,
        "MAX_SHAPE_BUCKETS": 1,
      },
      index="SCANN",
      index_settings=TREE,
      trainer_module="benchmarks.runs.timed_decisions",
      trainer_flags=["--decide_alone"] if is_alone else [],
    )
    if first is None:
      first = run
      train_and_index(run)
    else:
      run.copy_start_of(first)
      train(run)
    (alone if is_alone else together).append(run)
  times = [
    [
      comparison.read_times(file_of(run.model_dir, process))[_SKIPPED_STEPS:]
      for process in range(run.layout.processes)
    ]
    for run in together
  ]
  found = comparison.agreement_overhead(
    times, _step_seconds(together), _step_seconds(alone)
  )
  passed = found["added_to_step"] <= _HIGHEST_SHARE
  yield {"layout": str(together[0].layout), **found, "passed": passed}


def _step_seconds(group: Sequence[GroupRun]) -> list[list[float]]:
  return [
    [row["step_seconds"] for row in comparison.rows(run.model_dir)][
      _SKIPPED_STEPS:
    ]
    for run in group
  ]
