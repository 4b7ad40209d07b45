"""What retrieval adds to a training step, and what a swap does to one.

    python -m benchmarks.retrieval_overhead --json=retrieval_overhead.json

Pre-training by the demo's recipe (model, batch, candidates, lengths, blocks),
with ScaNN. In the first run retrieval and steps whose candidates are given
take turns of a few steps, since a machine's other work comes and goes. In the
second a second process rebuilds the index, as in the demo, and the steps that
swap a generation in are held against the median step.
"""

import argparse
import contextlib
import itertools
import json
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

from benchmarks import demo_corpus
from benchmarks.jobs import Job, as_gin, gin_command
from realm_jax import configuration
from realm_jax.console.table import figures_table
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.indexes.protocol import Index, SearchResult
from realm_jax.models.parameters import Params
from realm_jax.partitioning import cpu_tuning
from realm_jax.retrieval.pipeline import Assemble, Prepared, RetrievalPipeline
from realm_jax.training import loop
from realm_jax.training.batches import StepBatch
from realm_jax.training.config import TrainConfig

_RECIPE = "gin/experiments/demo/pretrain.gin"
_BUILDER = ["gin/runs/build_index.gin", "gin/experiments/demo/model.gin"]
_TURN_STEPS = 10
# Batches are prepared a step ahead and metrics fetched two late, so the first
# steps of a turn still belong to the one before.
_MIXED_STEPS = 4
_TARGETS = {"ratio": 1.10, "swap_ratio": 1.5}

Row = dict[str, float]


class TakingTurns(RetrievalPipeline[StepBatch]):
  """Searches for some steps, then gives candidates found before, and so on.

  The rows of metrics of steps whose candidates are given have no `search_ms`.
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
      retrieved: SearchResult,
    ) -> tuple[StepBatch, dict[str, float]]:
      batch, metrics = assemble(retrieved)
      self._batch = batch
      return batch, metrics

    def keep(_: SearchResult) -> tuple[StepBatch, dict[str, float]]:
      assert self._batch is not None
      return self._batch, {}

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
  """Pre-trains by the demo's recipe; returns the rows of metrics."""
  given = {"MODEL_DIR": model_dir, "CORPUS_DIR": corpus_dir, **bindings}
  with configuration.parsed(
    [_RECIPE], [f"{name} = {as_gin(value)}" for name, value in given.items()]
  ):
    config = configuration.configured(TrainConfig)()
  loop.train(config)
  return metrics_of(model_dir)


def metrics_of(model_dir: Path) -> list[Row]:
  """The rows of metrics of a run, one for each step."""
  lines = (model_dir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def machine() -> dict[str, Any]:
  """What it was measured on, and what else that did."""
  return {
    "processor": platform.processor() or platform.machine(),
    "cores": os.cpu_count(),
    "load": os.getloadavg()[0],
  }


@contextlib.contextmanager
def index_builder(
  model_dir: Path, corpus_dir: Path, *flags: str
) -> Iterator[None]:
  """The index builder beside the block, as the demo starts it."""
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
  """Step times with retrieval and with candidates given, turn by turn."""
  turns = [
    list(turn)
    for _, turn in itertools.groupby(rows, key=lambda row: "search_ms" in row)
  ]
  medians = [
    1e3 * statistics.median(row["step_seconds"] for row in turn[_MIXED_STEPS:])
    for turn in turns
    if len(turn) == _TURN_STEPS
  ]
  # The first turn holds the first steps of all, which are like no others.
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
  """The steps that swap a generation in, beside the median step.

  The swap falls into the step before the one that first searches the new
  generation; the longer of the two counts.
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
  """Both runs."""
  corpus_dir = demo_corpus.make_corpus(directory, scale=scale)
  first, second = directory / "first", directory / "second"
  # One turn more, which is not counted.
  steps = 2 * (turns + 1) * _TURN_STEPS
  with (
    mock.patch.object(loop, "RetrievalPipeline", TakingTurns),
    index_builder(first, corpus_dir, "--once"),
  ):
    taking_turns = train(
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
    **overhead(taking_turns),
    **swaps(followed),
    "targets": _TARGETS,
    "machine": machine(),
  }


def main(argv: Sequence[str] | None = None) -> None:
  """Measures and prints."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--turns", type=int, default=24, help="of each kind, in the first run"
  )
  parser.add_argument(
    "--steps", type=int, default=300, help="of the second run"
  )
  parser.add_argument(
    "--save_every_steps", type=int, default=60, help="in the second run"
  )
  parser.add_argument(
    "--scale", type=float, default=1.0, help="of the demo's encyclopedia"
  )
  parser.add_argument("--json", help="a file to write the result to")
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
