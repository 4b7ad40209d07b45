"""Makes the runs of a plan, one after the other."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from realm_jax.ablation.config import AblationError
from realm_jax.ablation.data import Data
from realm_jax.ablation.runs import Plan, Run
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.console import stop_on_sigterm
from realm_jax.evaluation.outputs import METRICS
from realm_jax.stage_commands import (
  StoppedError,
  run_to_end,
  running_beside,
  tail,
)


def newest_step(run: Run) -> int | None:
  """Returns the step of a training run's newest checkpoint, if it has any."""
  with contextlib.closing(CheckpointStore(run.folder)) as store:
    steps = store.steps()
  return steps[-1] if steps else None


def is_finished(run: Run) -> bool:
  """Returns whether a run has its last checkpoint, or its figures."""
  if run.num_steps is None:
    return (run.folder / METRICS).exists()
  return newest_step(run) == run.num_steps


def execute(plan: Plan, *, data: Data, output_dir: Path) -> None:
  """Makes all runs that are not finished, and continues those that were begun.

  SIGTERM stops it; calling it again continues.

  Raises:
    AblationError: A training run ended early.
    StoppedError: SIGTERM came.
    ValueError: A run failed.
    ValueError: Data are missing or wrong.
  """
  with stop_on_sigterm() as stop:
    for seed in dict.fromkeys(run.seed for run in plan.runs):
      data.prepare(output_dir / f"seed-{seed}", seed)
      if stop.is_set():
        raise StoppedError("stopped by SIGTERM, before the first run")
    for number, run in enumerate(plan.runs):
      if stop.is_set():
        raise StoppedError("stopped by SIGTERM, between two runs")
      if not is_finished(run):
        _announce(run, number, plan.runs)
        _execute(run)


def _announce(run: Run, number: int, runs: Sequence[Run]) -> None:
  print(
    f"\n=== {number + 1} of {len(runs)}: seed {run.seed}, {run.name}\n"
    f"    for {', '.join(run.rows)}",
    flush=True,
  )


def _execute(run: Run) -> None:
  """Makes one run, with its sidecar if it has one."""
  log = run.folder / f"{run.command.module}.log"
  with contextlib.ExitStack() as stack:
    if run.sidecar is not None:
      print(f"$ {run.sidecar} &", flush=True)
      stack.enter_context(
        running_beside(run.sidecar, run.folder / "build_index.log", wait=False)
      )
    print(f"$ {run.command}     # log: {log}", flush=True)
    run_to_end(run.command, log)
  if not is_finished(run):
    raise AblationError(
      f"{run.folder} ended at step {newest_step(run)} of {run.num_steps}:\n"
      f"{tail(log)}\n  Run the same command again to continue it."
    )
