"""Measures what retrieval and a refreshed index add to training steps.

    python -m benchmarks.refresh --directory=out/refresh --json=refresh.json

- Retrieval: pre-training with the demo's recipe and ScaNN alternates between
  series of steps that search and series whose candidates are given, because
  the machine's other load varies.
- Swaps: a small model is pre-trained with ScaNN over a million blocks, which
  searches in a process of its own. Generations are published during the run;
  each is verified, loaded and swapped in while training continues. The longest
  step from its publication until after the swap is compared with the median
  step before it.
- Loads: such a generation is loaded from a bucket of a server on this machine,
  with ScaNN and with an exact index over its vectors. The bytes that the server
  has sent are compared with the sizes of the files that the index needs.

Texts and vectors are generated, so that nothing has to be embedded, and are
kept in --directory.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.data import demo_corpus, large_corpus
from benchmarks.data.large_generations import (
  QUERY_LENGTH,
  RETRIEVER,
  make_generations,
)
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs.jobs import Job, as_gin, gin_command
from benchmarks.runs.object_store import ObjectStore
from realm_jax import configuration
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.files.metric_rows import read_rows
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import Index, SearchResult
from realm_jax.inputs.config import DataConfig
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.partitioning import cpu_tuning
from realm_jax.training import candidates, trainer
from realm_jax.training.config import CheckpointConfig, TrainConfig
from realm_jax.training.generations import (
  GenerationSchedule,
  WaitPreemptedError,
)
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.retrieval import (
  Assemble,
  Prepared,
  RetrievalPipeline,
  Retrieve,
)
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.stage import StepBatch

Row = dict[str, float]

_TURN_STEPS = 10
# Batches are prepared one step ahead and metrics are fetched two steps late, so
# the first steps of a series still belong to the previous one.
_MIXED_STEPS = 4
# Numbers of steps before a publication whose median is the reference, and of
# steps after a swap in which the old index is still being freed.
_BEFORE, _AFTER = 30, 3
# A run of swaps ends when all generations are swapped in.
_MAX_STEPS = 1_000_000
_TARGETS = {
  "retrieval_ratio": 1.10,
  "longest_ratio": 1.5,
  "read_over_needed": 1.1,
}


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


def measure_retrieval(*, turns: int, scale: float) -> dict[str, Any]:
  """Compares step times with retrieval and with given candidates."""
  with tempfile.TemporaryDirectory(prefix="realm_retrieval_") as name:
    directory = Path(name)
    corpus_dir = demo_corpus.make_corpus(directory, scale=scale)
    folders = {"MODEL_DIR": directory / "model", "CORPUS_DIR": corpus_dir}
    # The first pair of series is not measured, as the first steps differ.
    steps = 2 * (turns + 1) * _TURN_STEPS
    builder = Job(
      "builder",
      gin_command(
        "build_index",
        ["gin/runs/build_index.gin", "gin/experiments/demo/model.gin"],
        "--once",
        **folders,
      ),
      log=directory / "builder.log",
    )
    bindings = {**folders, "NUM_STEPS": steps, "SAVE_EVERY_STEPS": steps}
    with configuration.parsed(
      TrainConfig,
      ["gin/experiments/demo/pretrain.gin"],
      [f"{name} = {as_gin(value)}" for name, value in bindings.items()],
    ):
      config = configuration.configured(TrainConfig)()
    builder.start()
    try:
      with mock.patch.object(
        candidates, "RetrievalPipeline", AlternatingPipeline
      ):
        trainer.train(config)
    finally:
      builder.stop()
    rows = read_rows(directory / "model")
  medians = [
    1e3 * statistics.median(row["step_seconds"] for row in turn[_MIXED_STEPS:])
    for turn in (
      list(turn)
      for _, turn in itertools.groupby(rows, key=lambda row: "search_ms" in row)
    )
  ]
  pairs = list(zip(medians[2::2], medians[3::2], strict=True))
  return {
    "searched_ms": statistics.median(searched for searched, _ in pairs),
    "given_ms": statistics.median(given for _, given in pairs),
    "retrieval_ratio": statistics.median(a / b for a, b in pairs),
    "pairs_of_turns": len(pairs),
  }


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

  def __init__(self, *args: Any, publications: Publications, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._publications = publications

  def at(self, step: int) -> Any:
    generation = super().at(step)
    for why in self._watcher.rejected.values():
      raise GenerationError(why)
    self._publications.at(step, in_use=generation.step)
    return generation


def measure_swaps(
  model_dir: Path,
  corpus: Corpus,
  made: Sequence[Path],
  *,
  swaps: int,
  steps_between: int,
  batch_size: int,
) -> dict[str, Any]:
  """Pre-trains while generations are published, and compares the steps."""
  shutil.rmtree(model_dir, ignore_errors=True)
  generations_dir = model_dir / layout.FOLDER
  generations_dir.mkdir(parents=True)
  _link(made[0], Path(layout.path_of(generations_dir, 0)), step=0)
  publications = Publications(
    [
      _link(made[i % len(made)], model_dir / f"ready-{i}", step=i)
      for i in range(1, swaps + 1)
    ],
    generations_dir,
    steps_between=steps_between,
  )
  config = TrainConfig(
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
    reader=Reader(RETRIEVER.bert, joint_length=68),
    optimizer=OptimizerConfig(learning_rate=2e-4),
    num_steps=_MAX_STEPS,
    checkpoints=CheckpointConfig(save_every_steps=_MAX_STEPS),
    max_shape_buckets=2,
  )
  try:
    with mock.patch.object(
      candidates,
      "GenerationSchedule",
      functools.partial(PublishingSchedule, publications=publications),
    ):
      trainer.train(config)
    rows = read_rows(model_dir)
  finally:
    shutil.rmtree(model_dir, ignore_errors=True)
  found = [
    _swap(rows, generation, step)
    for generation, step in enumerate(publications.published_at, start=1)
  ]
  return {
    "swaps": found,
    "longest_ratio": max(swap["ratio"] for swap in found),
  }


def _link(source: Path, target: Path, *, step: int) -> Path:
  """Links the files of a generation under another step."""
  manifest = manifests.read(source)
  shutil.copytree(source, target, copy_function=os.link)
  manifest = dataclasses.replace(manifest, step=step)
  (target / layout.MANIFEST).unlink()
  (target / layout.MANIFEST).write_text(manifest.to_json())
  return target


def _swap(rows: Sequence[Row], generation: int, published_at: int) -> Row:
  """Summarizes the steps from a publication until after its swap."""
  seconds = np.array([row["step_seconds"] for row in rows])
  first = published_at - 1
  # The swap happens in the step before the first one that searches it.
  last = next(
    i for i, row in enumerate(rows) if row["generation"] == generation
  )
  last -= 1
  before = seconds[max(0, first - _BEFORE) : first]
  during = seconds[first : last + 1 + _AFTER]
  median = float(np.median(before))
  return {
    "load_seconds": float(seconds[first:last].sum()),
    "median_before_ms": 1e3 * median,
    "longest_before_ms": 1e3 * float(before.max()),
    "longest_during_ms": 1e3 * float(during.max()),
    "ratio": float(during.max()) / median,
  }


def measure_loads(generation: Path, corpus: Corpus) -> list[dict[str, Any]]:
  """Loads a generation from a bucket and from the disk, as a trainer does."""
  manifest = manifests.read(generation)
  found = []
  with ObjectStore() as store, mock.patch.dict(os.environ, store.environment):
    for path in sorted(generation.rglob("*")):
      if path.is_file():
        name = path.relative_to(generation.parent).as_posix()
        store.write(f"generations/{name}", path.read_bytes())
    for name, instead in (("scann", None), ("exact", ExactConfig())):
      # An exact index needs the vectors instead of the index's own files.
      needed = sum(
        file.size
        for file in manifest.files
        if file.path.startswith("query_tower/")
        or file.path.startswith("embeddings-") == (name == "exact")
      )
      row: dict[str, Any] = {"index": name, "needed_bytes": needed}
      before = store.answered_bytes()
      for storage, folder in (
        ("bucket", store.path("generations")),
        ("disk", str(generation.parent)),
      ):
        began = time.perf_counter()
        load_generation(
          folder,
          manifest.step,
          corpus=corpus,
          index=instead,
          beside_training=True,
          reads_vectors=False,
        )
        row[f"{storage}_seconds"] = time.perf_counter() - began
      row["read_over_needed"] = (store.answered_bytes() - before) / needed
      found.append(row)
  return found


def machine() -> dict[str, Any]:
  """Describes the machine and its load."""
  return {
    "processor": platform.processor() or platform.machine(),
    "cores": os.cpu_count(),
    "load": os.getloadavg()[0],
  }


def table(result: dict[str, Any]) -> str:
  """Formats the figures, one a line, with their targets."""
  found = result["retrieval"]
  lines = [
    f"a step: {found['searched_ms']:.1f} ms with retrieval, "
    f"{found['given_ms']:.1f} ms with given candidates, ratio "
    f"{found['retrieval_ratio']:.3f} (≤ {_TARGETS['retrieval_ratio']})"
  ]
  lines += [
    f"a swap among {result['num_blocks']:,} blocks: "
    f"{swap['load_seconds']:.1f} s, longest step "
    f"{swap['longest_during_ms']:.0f} ms, before it median "
    f"{swap['median_before_ms']:.0f} ms and longest "
    f"{swap['longest_before_ms']:.0f} ms, ratio {swap['ratio']:.2f} "
    f"(≤ {_TARGETS['longest_ratio']})"
    for swap in result["swaps"]
  ]
  lines += [
    f"a load of {load['index']}: {load['bucket_seconds']:.1f} s from a bucket, "
    f"{load['disk_seconds']:.1f} s from the disk, "
    f"{load['needed_bytes'] / 1e6:,.1f} MB needed, read / needed "
    f"{load['read_over_needed']:.3f} (≤ {_TARGETS['read_over_needed']})"
    for load in result["loads"]
  ]
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    "--directory",
    type=Path,
    required=True,
    help="folder of generated files, which are reused",
  )
  for name, default, what in (
    ("turns", 24, "series of steps of each kind"),
    ("num_blocks", 1_000_000, "number of blocks that are swapped and loaded"),
    ("num_leaves", 1024, "leaves of ScaNN"),
    ("swaps", 3, "number of swaps"),
    ("steps_between", 60, "steps from a swap to the next publication"),
    ("batch_size", 24, "batch size of a step between swaps"),
  ):
    parser.add_argument(f"--{name}", type=int, default=default, help=what)
  parser.add_argument(
    "--scale",
    type=float,
    default=1.0,
    help="size of the world; 1 is the demo's",
  )
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  given = parser.parse_args(argv)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  retrieval = measure_retrieval(turns=given.turns, scale=given.scale)
  directory = given.directory.absolute()
  directory.mkdir(parents=True, exist_ok=True)
  corpus = large_corpus.make_corpus(
    directory, given.num_blocks, scale=given.scale
  )
  index = fixed_tree(given.num_leaves, num_leaves_searched=8, num_reordered=200)
  # They are published alternately.
  made = make_generations(directory, corpus, index, count=2)
  swaps = measure_swaps(
    directory / "model",
    corpus,
    made,
    swaps=given.swaps,
    steps_between=given.steps_between,
    batch_size=given.batch_size,
  )
  result = {
    "retrieval": retrieval,
    "num_blocks": given.num_blocks,
    "dim": RETRIEVER.vector_size,
    **swaps,
    "loads": measure_loads(made[0], corpus),
    "targets": _TARGETS,
    "machine": machine(),
  }
  print(table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
