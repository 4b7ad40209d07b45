"""Kills trainer and index builder at random moments; nothing may change.

    python -m benchmarks.soak --json=soak.json

A run in the waiting mode, with exact search, is done once in peace. Then the
same run is done again while its processes are killed (`kill -9`) and started
again, until it is through. Loss curve and last checkpoint must be those of
the unbroken run bit for bit, and no half generation may ever be seen.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import demo_corpus
from benchmarks.jobs import Job, JobError, Run, wait_until
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.evaluation import outputs
from realm_jax.generations import layout
from realm_jax.generations import manifest as manifests

# The clock's, not the run's.
_TIMINGS = ("step_seconds", "examples_per_second", "search_ms", "gather_ms")
# What the watcher logs of a generation that is damaged or not whole.
_REFUSAL = "is not used"
_SAVE_EVERY_STEPS = 10
_MODEL = "benchmarks/soak.gin"


@dataclasses.dataclass(frozen=True)
class Moment:
  """When to kill what.

  Attributes:
    victims: `trainer`, `builder` or both.
    checkpoint: not before this step is saved; −1 is at once.
    delay_seconds: after that.
  """

  victims: tuple[str, ...]
  checkpoint: int
  delay_seconds: float


@dataclasses.dataclass(frozen=True)
class Kill:
  """What a kill met.

  Attributes:
    victims: who was killed.
    alive_seconds: how long the first of them had lived.
    checkpoint: the last saved step.
    generation: the last published generation.
    half_written: the checkpoints and generations that were being written.
  """

  victims: tuple[str, ...]
  alive_seconds: float
  checkpoint: int
  generation: int
  half_written: tuple[str, ...]


def draw_moments(
  count: int, *, num_steps: int, cycle_seconds: float, seed: int
) -> list[Moment]:
  """Random moments, spread over a run.

  Three in four come some part of two cycles after a random checkpoint (a
  cycle is save, embed, publish, load and so many steps), the others while a
  process that was just killed is starting.
  """
  rng = np.random.default_rng(seed)
  steps = np.sort(rng.integers(0, round(0.9 * num_steps), count))
  victims = [("trainer",), ("builder",), ("trainer", "builder")]
  moments = []
  for step in steps.tolist():
    who = victims[rng.choice(3, p=[0.4, 0.4, 0.2])]
    if moments and rng.random() < 0.25:
      who = moments[-1].victims
      moments.append(Moment(who, -1, rng.uniform(0, 10)))
    else:
      moments.append(Moment(who, step, rng.uniform(0, 2 * cycle_seconds)))
  return moments


@contextlib.contextmanager
def started(run: Run) -> Iterator[dict[str, Job]]:
  """Trainer and builder, which are dead when the block ends."""
  jobs = {"trainer": run.trainer(), "builder": run.builder()}
  try:
    for job in jobs.values():
      job.start()
    yield jobs
  finally:
    for job in jobs.values():
      job.stop()


def kill_at(run: Run, moment: Moment, jobs: dict[str, Job]) -> Kill | None:
  """Kills and starts again; None where the run ended first.

  Raises:
    GenerationError: the kill left a generation that is not whole.
    JobError: a job failed by itself.
  """
  trainer = jobs["trainer"]
  others = tuple(job for job in jobs.values() if job is not trainer)
  wait_until(
    lambda: trainer.ended() or run.last_checkpoint() >= moment.checkpoint,
    what=f"checkpoint {moment.checkpoint}",
    jobs=others,
  )
  deadline = time.monotonic() + moment.delay_seconds
  wait_until(
    lambda: trainer.ended() or time.monotonic() > deadline,
    what="passing of time",
    jobs=others,
  )
  if trainer.ended():
    return None
  victims = [jobs[name] for name in moment.victims]
  alive_seconds = time.monotonic() - victims[0].started_at
  for job in victims:
    job.kill()
  kill = Kill(
    victims=moment.victims,
    alive_seconds=round(alive_seconds, 1),
    checkpoint=run.last_checkpoint(),
    generation=run.last_generation(),
    half_written=tuple(run.half_written()),
  )
  verify_generations(run)
  for job in victims:
    job.start()
  return kill


def complete(jobs: dict[str, Job]) -> None:
  """Waits for the end of training, and tells the builder to stop.

  Raises:
    JobError: a job failed.
  """
  trainer, builder = jobs["trainer"], jobs["builder"]
  wait_until(trainer.ended, what="end of training", jobs=(builder,))
  if code := builder.terminate():
    raise JobError(f"the builder ended with {code}:\n{builder.tail()}")


def finish(run: Run, moments: Iterable[Moment] = ()) -> list[Kill]:
  """Runs trainer and builder to the end, killing and restarting them.

  Args:
    run: whose folder is empty.
    moments: when to kill; those past the end of the run are left out.

  Returns:
    The kills that were done.
  """
  with started(run) as jobs:
    kills = [kill_at(run, moment, jobs) for moment in moments]
    complete(jobs)
  return [kill for kill in kills if kill is not None]


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


def verify_generations(run: Run) -> int:
  """Verifies every byte of every published generation; how many there are.

  Raises:
    GenerationError: one is not whole.
  """
  generations = run.model_dir / layout.FOLDER
  steps = layout.published_steps(generations)
  for step in steps:
    directory = layout.path_of(generations, step)
    with contextlib.suppress(FileNotFoundError):
      manifests.verify(directory, manifests.read(directory))
  return len(steps)


def refusals(run: Run) -> list[str]:
  """The trainer's lines about generations that it could not use."""
  lines = run.trainer().log.read_text(errors="replace").splitlines()
  return [line for line in lines if _REFUSAL in line]


def soak(
  directory: Path, *, kills: int, num_steps: int, seed: int
) -> dict[str, Any]:
  """The unbroken run, the broken one, and what they differ in."""
  corpus_dir = demo_corpus.make_corpus(directory, scale=0.5)

  def run(name: str) -> Run:
    return Run(
      directory=directory / name,
      corpus_dir=corpus_dir,
      model=_MODEL,
      num_steps=num_steps,
      save_every_steps=_SAVE_EVERY_STEPS,
    )

  unbroken, broken = run("unbroken"), run("broken")
  print("the unbroken run …", flush=True)
  began = time.monotonic()
  finish(unbroken)
  unbroken_seconds = time.monotonic() - began
  print(f"… took {unbroken_seconds:.0f} s; now with {kills} kills", flush=True)
  moments = draw_moments(
    kills,
    num_steps=num_steps,
    cycle_seconds=unbroken_seconds * _SAVE_EVERY_STEPS / num_steps,
    seed=seed,
  )
  began = time.monotonic()
  done = finish(broken, moments)
  return {
    "kills": [dataclasses.asdict(kill) for kill in done],
    "differences": differences(unbroken, broken),
    "refused_generations": refusals(broken),
    "generations_standing": verify_generations(broken),
    "steps": num_steps,
    "swaps": len({row["generation"] for row in curve(broken)}) - 1,
    "unbroken_seconds": round(unbroken_seconds, 1),
    "broken_seconds": round(time.monotonic() - began, 1),
  }


def table(kills: Sequence[dict[str, Any]]) -> str:
  """A line for each kill."""
  lines = [
    "kill  victims            alive s  checkpoint  generation  half-written"
  ]
  for number, kill in enumerate(kills, start=1):
    lines.append(
      f"{number:4}  {' + '.join(kill['victims']):<17}  "
      f"{kill['alive_seconds']:7.1f}  {kill['checkpoint']:10}  "
      f"{kill['generation']:10}  {', '.join(kill['half_written']) or '–'}"
    )
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the soak; 1 if anything differs."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--kills", type=int, default=20)
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  parser.add_argument("--steps", type=int, default=300)
  parser.add_argument("--output_dir", help="keeps the runs and their logs")
  parser.add_argument("--json", help="a file to write the result to")
  given = parser.parse_args(argv)
  # So that no process outlives this one.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
  with contextlib.ExitStack() as stack:
    directory = given.output_dir or stack.enter_context(
      tempfile.TemporaryDirectory(prefix="realm_soak_")
    )
    result = soak(
      Path(directory),
      kills=given.kills,
      num_steps=given.steps,
      seed=given.seed,
    )
  print(table(result["kills"]))
  by_victim = collections.Counter(
    " + ".join(kill["victims"]) for kill in result["kills"]
  )
  passed = not (result["differences"] or result["refused_generations"])
  summary = {
    "kills": f"{len(result['kills'])} ({dict(by_victim)})",
    "mid-write": sum(bool(kill["half_written"]) for kill in result["kills"]),
    "swaps": result["swaps"],
    "half generations seen": len(result["refused_generations"]),
    "differences": "; ".join(result["differences"][:5]) or "none",
    "seconds": f"{result['broken_seconds']} (unbroken "
    f"{result['unbroken_seconds']})",
    "passed": passed,
  }
  print(outputs.table(summary))
  if given.json:
    outputs.write_json(given.json, {**result, "passed": passed})
  return 0 if passed else 1


if __name__ == "__main__":
  sys.exit(main())
