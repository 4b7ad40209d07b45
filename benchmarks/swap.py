"""Measures the training steps while a large generation is swapped in.

    python -m benchmarks.swap --directory=out/swap --json=swap.json

A small model is pre-trained with ScaNN over a million blocks, which searches in
a process of its own. Generations of the same size are published during the run.
Each is verified, loaded and swapped in while training continues. The longest
step from its publication until after the swap is compared with the median step
before it. Texts and vectors are generated, so that nothing has to be embedded,
and are kept in --directory.
"""

import argparse
import dataclasses
import functools
import os
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.data import generation_flags, large_corpus
from benchmarks.data.large_generations import (
  QUERY_LENGTH,
  RETRIEVER,
  make_generations,
)
from benchmarks.retrieval_overhead import Row, machine, metrics_of
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.reader import Reader
from realm_jax.partitioning import cpu_tuning
from realm_jax.training import loop
from realm_jax.training import run as training_run
from realm_jax.training.config import CheckpointConfig, TrainConfig
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.refresh.schedule import (
  GenerationSchedule,
  WaitPreemptedError,
)
from realm_jax.training.stages.pretraining import Pretraining

_TARGET = 1.5
_JOINT_LENGTH = 68
_READER = Reader(RETRIEVER.bert, joint_length=_JOINT_LENGTH)
# Generations that are published alternately.
_NUM_MADE = 2
# Numbers of steps before a publication whose median is the reference, and of
# steps after a swap in which the old index is still being freed.
_BEFORE, _AFTER = 30, 3
# A run ends when all generations are swapped in.
_MAX_STEPS = 1_000_000


class Publications:
  """Publishes generations to a run, each some steps after the last swap.

  Args:
    ready: Complete generations of steps 1, 2, … that are not published yet.
    generations_dir: Folder of the published generations.
    steps_between: Steps from a swap to the next publication, or to the end of
      the run.
  """

  def __init__(
    self, ready: Sequence[Path], generations_dir: Path, *, steps_between: int
  ):
    self._ready = ready
    self._directory = generations_dir
    self._between = self._due = steps_between
    self.published_at: list[int] = []

  def at(self, step: int, *, in_use: int) -> None:
    """Publishes a generation if it is due, by a rename as a builder does.

    Raises:
      WaitPreemptedError: All were swapped in, and the run should end.
    """
    published = len(self.published_at)
    if in_use < published:
      self._due = step + self._between
    elif step >= self._due:
      if published == len(self._ready):
        raise WaitPreemptedError
      target = layout.path_of(self._directory, published + 1)
      os.rename(self._ready[published], target)
      self.published_at.append(step)
      self._due = step + self._between


class PublishingSchedule(GenerationSchedule):
  """Schedule that publishes generations as the run reaches their steps."""

  def __init__(
    self, watcher: Any, *args: Any, publications: Publications, **kwargs: Any
  ):
    super().__init__(watcher, *args, **kwargs)
    self._publications, self._follows = publications, watcher

  def at(self, step: int) -> Any:
    generation = super().at(step)
    for why in self._follows.rejected.values():
      raise GenerationError(why)
    self._publications.at(step, in_use=generation.step)
    return generation


def linked(source: Path, target: Path, *, step: int) -> Path:
  """Links the files of a generation under another step."""
  manifest = manifests.read(source)
  shutil.copytree(source, target, copy_function=os.link)
  manifest = dataclasses.replace(manifest, step=step)
  (target / layout.MANIFEST).unlink()
  (target / layout.MANIFEST).write_text(manifest.to_json())
  return target


def train(
  model_dir: Path,
  corpus: Corpus,
  made: Sequence[Path],
  *,
  swaps: int,
  steps_between: int,
  batch_size: int,
) -> tuple[list[Row], list[int]]:
  """Pre-trains while generations are published.

  Returns:
    The rows of metrics, and the step at which each generation was published.
  """
  generations_dir = model_dir / layout.FOLDER
  generations_dir.mkdir(parents=True)
  linked(made[0], Path(layout.path_of(generations_dir, 0)), step=0)
  publications = Publications(
    [
      linked(made[i % len(made)], model_dir / f"ready-{i}", step=i)
      for i in range(1, swaps + 1)
    ],
    generations_dir,
    steps_between=steps_between,
  )
  with mock.patch.object(
    training_run,
    "GenerationSchedule",
    functools.partial(PublishingSchedule, publications=publications),
  ):
    loop.train(
      TrainConfig(
        model_dir=model_dir,
        data=DataConfig(
          task="masked_salient_spans",
          corpus_dir=corpus.source,
          batch_size=batch_size,
          query_length=QUERY_LENGTH,
          block_length=corpus.block_length,
        ),
        stage=Pretraining(),
        retriever=RETRIEVER,
        reader=_READER,
        optimizer=OptimizerConfig(learning_rate=2e-4),
        num_steps=_MAX_STEPS,
        checkpoints=CheckpointConfig(save_every_steps=_MAX_STEPS),
      )
    )
  return metrics_of(model_dir), publications.published_at


def loads(rows: Sequence[Row], published_at: Sequence[int]) -> list[Row]:
  """Summarizes the steps from each publication until after its swap.

  Generations that were never searched are left out.

  Args:
    rows: Metrics of steps 1, 2, …
    published_at: Steps at which generations 1, 2, … were published.
  """
  found = []
  seconds = np.array([row["step_seconds"] for row in rows])
  for number, step in enumerate(published_at, start=1):
    searched = [row["step"] for row in rows if row["generation"] == number]
    if not searched:
      continue
    first, last = step - 1, int(searched[0]) - 1
    before = seconds[max(0, first - _BEFORE) : first]
    median = float(np.median(before))
    during = seconds[first : last + 1 + _AFTER]
    found.append(
      {
        "published_at_step": step,
        "searched_from_step": last + 1,
        "seconds": float(seconds[first:last].sum()),
        "median_before_ms": 1e3 * median,
        "longest_before_ms": 1e3 * float(before.max()),
        "median_during_ms": 1e3 * float(np.median(during)),
        "longest_during_ms": 1e3 * float(during.max()),
        "ratio": float(during.max()) / median,
        "ratio_before": float(before.max()) / median,
      }
    )
  return found


def measure(
  directory: Path,
  *,
  num_blocks: int,
  index: IndexConfig,
  scale: float,
  swaps: int,
  steps_between: int,
  batch_size: int,
) -> dict[str, Any]:
  """Makes the missing files, trains, and measures the steps."""
  directory.mkdir(parents=True, exist_ok=True)
  corpus = large_corpus.make_corpus(directory, num_blocks, scale=scale)
  made = make_generations(directory, corpus, index, count=_NUM_MADE)
  model_dir = directory / "model"
  shutil.rmtree(model_dir, ignore_errors=True)
  try:
    rows, published_at = train(
      model_dir,
      corpus,
      made,
      swaps=swaps,
      steps_between=steps_between,
      batch_size=batch_size,
    )
  finally:
    shutil.rmtree(model_dir, ignore_errors=True)
  found = loads(rows, published_at)
  return {
    "num_blocks": num_blocks,
    "dim": RETRIEVER.vector_size,
    "loads": found,
    "swaps": len(found),
    "median_step_ms": 1e3
    * statistics.median(row["step_seconds"] for row in rows),
    "longest_ratio": max(load["ratio"] for load in found),
    "target": _TARGET,
    "machine": machine(),
  }


def table(result: dict[str, Any]) -> str:
  """Formats the loads as a table."""
  lines = [
    f"{result['num_blocks']:,} blocks of {result['dim']} dimensions",
    f"{'load s':>7}{'median before, ms':>19}{'longest before':>16}"
    f"{'median during':>15}{'longest during':>16}{'ratio':>7}",
  ]
  for load in result["loads"]:
    lines.append(
      f"{load['seconds']:>7.1f}{load['median_before_ms']:>19.0f}"
      f"{load['longest_before_ms']:>16.0f}{load['median_during_ms']:>15.0f}"
      f"{load['longest_during_ms']:>16.0f}{load['ratio']:>7.2f}"
    )
  lines.append(
    f"the longest against the median before it: {result['longest_ratio']:.2f} "
    f"(≤ {result['target']})"
  )
  return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  parser = generation_flags.make_parser((__doc__ or "").partition("\n")[0])
  parser.add_argument("--swaps", type=int, default=3, help="number of swaps")
  parser.add_argument(
    "--steps_between",
    type=int,
    default=60,
    help="steps from a swap to the next publication",
  )
  parser.add_argument(
    "--batch_size", type=int, default=24, help="batch size of a step"
  )
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  given = make_parser().parse_args(arguments)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  result = measure(
    given.directory.absolute(),
    num_blocks=given.num_blocks,
    index=generation_flags.index_of(given),
    scale=given.scale,
    swaps=given.swaps,
    steps_between=given.steps_between,
    batch_size=given.batch_size,
  )
  print(table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
