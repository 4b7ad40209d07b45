"""Measures the time that retrieval and swaps add to training steps.

    python -m benchmarks.retrieval_overhead --json=retrieval_overhead.json

The run is pre-training with the demo's recipe (model, batch, candidates,
lengths, blocks) and ScaNN. The first run alternates between series of steps
with retrieval and series of steps with given candidates, because the machine's
other load varies. In the second run, a second process rebuilds the index, as in
the demo, and the steps that swap a generation in are compared with the median
step.
"""

import argparse
import contextlib
import itertools
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.data import demo_corpus
from benchmarks.runs.jobs import Job, as_gin, gin_command
from realm_jax import configuration
from realm_jax.console.table import figures_table
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.files.metric_rows import read_rows
from realm_jax.indexes.protocol import Index, SearchResult
from realm_jax.models.parameters import Params
from realm_jax.partitioning import cpu_tuning
from realm_jax.retrieval.pipeline import (
  Assemble,
  Prepared,
  RetrievalPipeline,
  Retrieve,
)
from realm_jax.training import loop
from realm_jax.training import run as training_run
from realm_jax.training.batches import StepBatch
from realm_jax.training.config import TrainConfig

_RECIPE = "gin/experiments/demo/pretrain.gin"
_BUILDER = ["gin/runs/build_index.gin", "gin/experiments/demo/model.gin"]
_TURN_STEPS = 10
# Batches are prepared one step ahead and metrics are fetched two steps late, so
# the first steps of a series still belong to the previous one.
_MIXED_STEPS = 4
_TARGETS = {"ratio": 1.10, "swap_ratio": 1.5}

Row = dict[str, float]


class AlternatingPipeline(RetrievalPipeline[StepBatch]):
  """Alternates between series of steps with search and with given candidates.

  Metrics of steps with given candidates have no `search_ms`.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._step = 0
    self._vectors: jax.Array | None = None
    self._batch: StepBatch | None = None

  @property
  def _gives(self) -> bool:
    return self._step // _TURN_STEPS % 2 == 1

  def embed(self, token_ids: np.ndarray, query_params: Params) -> jax.Array:
    if self._vectors is None or not self._gives:
      self._vectors = super().embed(token_ids, query_params)
    return self._vectors

  def search(
    self,
    token_ids: np.ndarray,
    vectors: jax.Array | None,
    *,
    index: Index,
    num_blocks: int,
    assemble: Assemble[StepBatch],
  ) -> Future[Prepared[StepBatch]]:
    gives = self._gives
    self._step += 1

    def assemble_and_keep(
      retrieve: Retrieve,
    ) -> tuple[SearchResult, StepBatch, dict[str, float]]:
      retrieved, batch, metrics = assemble(retrieve)
      self._batch = batch
      return retrieved, batch, metrics

    def keep(
      retrieve: Retrieve,
    ) -> tuple[SearchResult, StepBatch, dict[str, float]]:
      assert self._batch is not None
      return retrieve(), self._batch, {}

    if gives:
      return self.without_search(keep)
    return super().search(
      token_ids,
      vectors,
      index=index,
      num_blocks=num_blocks,
      assemble=assemble_and_keep,
    )


def train(model_dir: Path, corpus_dir: Path, **bindings: Any) -> list[Row]:
  """Pre-trains with the demo's recipe; returns the rows of metrics."""
  given = {"MODEL_DIR": model_dir, "CORPUS_DIR": corpus_dir, **bindings}
  with configuration.parsed(
    [_RECIPE], [f"{name} = {as_gin(value)}" for name, value in given.items()]
  ):
    config = configuration.configured(TrainConfig)()
  loop.train(config)
  return metrics_of(model_dir)


def metrics_of(model_dir: Path) -> list[Row]:
  """Reads the metrics of a run, one row for each step."""
  return read_rows(model_dir)


def machine() -> dict[str, Any]:
  """Describes the machine and its load."""
  return {
    "processor": platform.processor() or platform.machine(),
    "cores": os.cpu_count(),
    "load": os.getloadavg()[0],
  }


@contextlib.contextmanager
def index_builder(
  model_dir: Path, corpus_dir: Path, *flags: str
) -> Iterator[None]:
  """Runs the index builder beside the block, as the demo does."""
  command = gin_command(
    "build_index", _BUILDER, *flags, MODEL_DIR=model_dir, CORPUS_DIR=corpus_dir
  )
  job = Job(
    "builder",
    ["nice", "-n", "5", *command],
    log=model_dir.with_suffix(".builder.log"),
  )
  job.start()
  try:
    yield
  finally:
    job.stop()


def overhead(rows: Sequence[Row]) -> dict[str, float]:
  """Compares step times with retrieval and with given candidates."""
  turns = [
    list(turn)
    for _, turn in itertools.groupby(rows, key=lambda row: "search_ms" in row)
  ]
  medians = [
    1e3 * statistics.median(row["step_seconds"] for row in turn[_MIXED_STEPS:])
    for turn in turns
    if len(turn) == _TURN_STEPS
  ]
  # The first series is left out, because the first steps of a run differ.
  searched, given = medians[2::2], medians[3::2]
  pairs = min(len(searched), len(given))
  found = [row for row in rows if "search_ms" in row]
  return {
    "searched_ms": statistics.median(searched),
    "given_ms": statistics.median(given),
    "ratio": statistics.median(
      a / b for a, b in zip(searched[:pairs], given[:pairs], strict=True)
    ),
    "pairs_of_turns": pairs,
    "search_ms": statistics.median(row["search_ms"] for row in found),
    "gather_ms": statistics.median(row["gather_ms"] for row in found),
  }


def swaps(rows: Sequence[Row]) -> dict[str, Any]:
  """Compares the steps that swap a generation in with the median step.

  The swap happens in the step before the first one that searches the new
  generation; the longer of the two is reported.
  """
  seconds = [row["step_seconds"] for row in rows]
  median = statistics.median(seconds)
  at_swaps = [
    {
      "step": rows[i]["step"],
      "ms": 1e3 * max(seconds[i - 1], seconds[i]),
    }
    for i in range(1, len(rows))
    if rows[i]["generation"] != rows[i - 1]["generation"]
  ]
  longest = max((swap["ms"] for swap in at_swaps), default=float("nan"))
  return {
    "swaps": at_swaps,
    "median_step_ms": 1e3 * median,
    "p95_step_ms": 1e3 * float(np.quantile(seconds, 0.95)),
    "longest_swap_ms": longest,
    "swap_ratio": longest / (1e3 * median),
  }


def measure(
  directory: Path,
  *,
  turns: int,
  num_steps: int,
  save_every_steps: int,
  scale: float,
) -> dict[str, Any]:
  """Does both runs and returns the figures."""
  corpus_dir = demo_corpus.make_corpus(directory, scale=scale)
  first, second = directory / "first", directory / "second"
  # The first pair of series is not measured.
  steps = 2 * (turns + 1) * _TURN_STEPS
  with (
    mock.patch.object(training_run, "RetrievalPipeline", AlternatingPipeline),
    index_builder(first, corpus_dir, "--once"),
  ):
    alternating = train(
      first, corpus_dir, NUM_STEPS=steps, SAVE_EVERY_STEPS=steps
    )
  with index_builder(second, corpus_dir):
    followed = train(
      second,
      corpus_dir,
      NUM_STEPS=num_steps,
      SAVE_EVERY_STEPS=save_every_steps,
    )
  return {
    "blocks": Corpus.open(corpus_dir).num_blocks,
    **overhead(alternating),
    **swaps(followed),
    "targets": _TARGETS,
    "machine": machine(),
  }


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--turns", type=int, default=24, help="series of each kind in the first run"
  )
  parser.add_argument(
    "--steps", type=int, default=300, help="steps of the second run"
  )
  parser.add_argument(
    "--save_every_steps",
    type=int,
    default=60,
    help="steps between checkpoints in the second run",
  )
  parser.add_argument(
    "--scale",
    type=float,
    default=1.0,
    help="size of the world; 1 is the demo's",
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  with tempfile.TemporaryDirectory(prefix="realm_overhead_") as directory:
    result = measure(
      Path(directory),
      turns=given.turns,
      num_steps=given.steps,
      save_every_steps=given.save_every_steps,
      scale=given.scale,
    )
  print(figures_table({**result, "swaps": len(result["swaps"])}))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
