"""Measures the cost of retrieval and of a refreshed index in training steps.

    python -m benchmarks.refresh --directory=out/refresh --json=refresh.json

- Retrieval: pre-training with the demo's recipe and ScaNN alternates between
  runs that search, and runs that reuse the batches of the previous run, because
  other load on the machine varies.
- Swaps: a small model is pre-trained with ScaNN over a million blocks, which
  searches in a separate process. Snapshots are published during the run, and
  each is verified, loaded and swapped in while training continues. The longest
  step from the publication until after the swap is compared with the median
  step before.

Texts and vectors are generated, so nothing has to be embedded, and are kept in
--directory.
"""

import dataclasses
import itertools
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks import flags
from benchmarks.data import demo_corpus, index_vectors
from benchmarks.embedding import for_corpus
from benchmarks.train_step import random_parameters
from harness.jobs import as_gin, gin_command
from realm_jax import configuration
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.build import (
  CompiledTowers,
  SnapshotConfig,
  publish_vectors,
)
from realm_jax.snapshots.store import FOLDER, MANIFEST, SnapshotStore
from realm_jax.training import trainer
from realm_jax.training.config import CheckpointConfig, TrainConfig
from realm_jax.training.metric_rows import read_rows
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.stage import Features

Row = dict[str, float]

# Number of steps of a run with or without retrieval, and number of steps at the
# start that are not measured.
_RUN_STEPS, _FIRST_STEPS = 60, 10
# Number of steps between publications, in which a snapshot must be swapped in.
_BETWEEN = 200
# Number of steps before a publication, whose median is the reference; and
# number of steps after a swap, in which the old index is still being freed.
_BEFORE, _AFTER = 30, 3
_BATCH_SIZE = 24
_QUERY_LENGTH = 16
_RETRIEVER = BertRetriever(
  BertConfig(
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    intermediate_size=512,
    max_positions=128,
    dropout_rate=0.0,
  ),
  projection_dropout_rate=0.0,
)


def measure_retrieval(*, pairs: int, scale: float) -> dict[str, Any]:
  """Compares step times with retrieval and with given candidates."""
  with tempfile.TemporaryDirectory(prefix="realm_retrieval_") as name:
    model_dir = Path(name) / "model"
    corpus_dir = demo_corpus.make_corpus(Path(name), scale=scale)
    folders = {"MODEL_DIR": model_dir, "CORPUS_DIR": corpus_dir}
    steps = {"NUM_STEPS": _RUN_STEPS, "SAVE_EVERY_STEPS": _RUN_STEPS}
    bindings = {**folders, **steps}.items()
    bound = [f"{name} = {as_gin(value)}" for name, value in bindings]
    recipe = "experiments/gin/demo/pretrain.gin"
    parsed = configuration.parsed(TrainConfig, [recipe], bound)
    config = parsed.build(TrainConfig)
    # With 0 steps, a run writes the checkpoint for its first snapshot.
    trainer.train(dataclasses.replace(config, num_steps=0))
    recipes = ["gin/runs/build_index.gin", "experiments/gin/demo/model.gin"]
    command = gin_command("build_index", recipes, "--once", **folders)
    subprocess.run(command, check=True)
    kept: list[Features] = []
    assemble = Pretraining.features

    def keep(stage: Pretraining, *arguments: Any) -> Features:
      kept.append(assemble(stage, *arguments))
      return kept[-1]

    def replay(*arguments: Any) -> Features:
      return kept.pop(0)

    pairs_ms = []
    for _ in range(pairs):
      searched = _median_ms(config, keep)
      with mock.patch.object(Pretraining, "retrieval", None):
        pairs_ms.append((searched, _median_ms(config, replay)))
  return {
    "searched_ms": statistics.median(a for a, _ in pairs_ms),
    "given_ms": statistics.median(b for _, b in pairs_ms),
    "ratio": statistics.median(a / b for a, b in pairs_ms),
  }


def _median_ms(config: TrainConfig, assemble: Callable[..., Any]) -> float:
  """Trains from the start, and returns the median time of a step."""
  model_dir = Path(config.model_dir)
  for path in model_dir.iterdir():
    if path.is_file():
      path.unlink()
    elif path.name != FOLDER:
      shutil.rmtree(path)
  with mock.patch.object(Pretraining, "features", assemble):
    trainer.train(config)
  rows = read_rows(model_dir)[_FIRST_STEPS:]
  return 1e3 * statistics.median(row["step_seconds"] for row in rows)


def _make_snapshots(
  directory: Path, corpus: Corpus, index: IndexConfig, *, count: int
) -> list[Path]:
  """Builds snapshots 0, 1, … of synthetic vectors, unless they exist.

  Args:
    directory: Folder of vectors and snapshots.
    corpus: Corpus of the blocks.
    index: Index to build; use another directory for other settings.
    count: Number of snapshots.
  """
  store = SnapshotStore(directory / f"snapshots-{corpus.num_blocks}")
  mesh = make_mesh()
  retriever = for_corpus(_RETRIEVER, corpus)
  params = jax.device_put(
    random_parameters(retriever), sharding.replicated(mesh)
  )
  config = SnapshotConfig(
    retriever, index, query_length=_QUERY_LENGTH, recall_queries=64
  )
  towers = CompiledTowers(config, corpus, mesh=mesh)
  for step in range(count):
    if step in store.steps():
      continue
    folder = directory / f"vectors-{step}"
    index_vectors.generate(folder, corpus.num_blocks, seed=step)
    vectors = index_vectors.vectors(folder)
    publish_vectors(towers, store.directory, params, vectors, step=step)
    shutil.rmtree(folder)
  return [Path(store.path(step)) for step in range(count)]


def measure_swaps(
  model_dir: Path, corpus: Corpus, snapshots: Sequence[Path], *, swaps: int
) -> list[Row]:
  """Pre-trains while snapshots are published, and compares the steps."""
  shutil.rmtree(model_dir, ignore_errors=True)
  store = SnapshotStore(model_dir / FOLDER)
  (model_dir / FOLDER).mkdir(parents=True)
  _link(snapshots[0], Path(store.path(0)), step=0)
  ready = [
    _link(snapshots[i % len(snapshots)], model_dir / f"ready-{i}", step=i)
    for i in range(1, swaps + 1)
  ]
  steps = itertools.count(1)
  assemble = Pretraining.features

  def publish(stage: Pretraining, *arguments: Any) -> Features:
    """Publishes a snapshot if it is due, by a rename as in a build."""
    published, is_due = divmod(next(steps), _BETWEEN)
    if is_due == 0 and published <= swaps:
      os.rename(ready[published - 1], store.path(published))
    batch, metrics = assemble(stage, *arguments)
    return batch, {**metrics, "published": min(published, swaps)}

  num_steps = (swaps + 1) * _BETWEEN
  config = TrainConfig(
    model_dir=model_dir,
    data=DataConfig(
      task="masked_salient_spans",
      corpus_dir=corpus.source,
      batch_size=_BATCH_SIZE,
      query_length=_QUERY_LENGTH,
      block_length=corpus.block_length,
    ),
    stage=Pretraining(),
    retriever=_RETRIEVER,
    reader=BertReader(_RETRIEVER.bert, joint_length=68),
    optimizer=OptimizerConfig(learning_rate=2e-4),
    num_steps=num_steps,
    checkpoints=CheckpointConfig(save_every_steps=num_steps),
    max_shape_buckets=2,
  )
  try:
    with mock.patch.object(Pretraining, "features", publish):
      trainer.train(config)
    rows = read_rows(model_dir)
  finally:
    shutil.rmtree(model_dir, ignore_errors=True)
  return [_swap(rows, snapshot) for snapshot in range(1, swaps + 1)]


def _link(source: Path, target: Path, *, step: int) -> Path:
  """Links the files of a snapshot as another step's."""
  manifest = SnapshotStore(source.parent).manifest(int(source.name))
  shutil.copytree(source, target, copy_function=os.link)
  manifest = dataclasses.replace(manifest, step=step)
  (target / MANIFEST).unlink()
  (target / MANIFEST).write_text(manifest.to_json())
  return target


def _swap(rows: Sequence[Row], snapshot: int) -> Row:
  """Summarizes the steps from a publication until after its swap."""
  milliseconds = 1e3 * np.array([row["step_seconds"] for row in rows])
  # The batch and the snapshot of a step are chosen during the previous step.
  first, last = (
    next(i for i, row in enumerate(rows) if row[name] == snapshot) - 1
    for name in ("published", "snapshot")
  )
  before = milliseconds[max(0, first - _BEFORE) : first]
  longest = milliseconds[first : last + 1 + _AFTER].max()
  return {
    "snapshot": snapshot,
    "load_seconds": float(milliseconds[first:last].sum()) / 1e3,
    "median_before_ms": float(np.median(before)),
    "longest_before_ms": float(before.max()),
    "longest_during_ms": float(longest),
    "ratio": float(longest / np.median(before)),
  }


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  options = flags.parse(
    __doc__,
    argv,
    directory=Path,
    pairs=6,
    swaps=3,
    scale=1.0,
    large_scale=100.0,
  )
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  retrieval = measure_retrieval(pairs=options.pairs, scale=options.scale)
  directory = options.directory.absolute()
  directory.mkdir(parents=True, exist_ok=True)
  texts = directory / f"world-{options.large_scale}"
  if not (texts / "corpus").exists():
    demo_corpus.make_corpus(texts, scale=options.large_scale)
  corpus = Corpus.open(texts / "corpus")
  # The power of two closest to the square root: 1,024 for a million blocks.
  num_leaves = 1 << round(np.log2(corpus.num_blocks) / 2)
  index = ScannConfig(
    below_target=True,
    num_leaves=num_leaves,
    num_leaves_searched=8,
    num_reordered=200,
  )
  # Published alternately.
  snapshots = _make_snapshots(directory, corpus, index, count=2)
  swaps = measure_swaps(
    directory / "model", corpus, snapshots, swaps=options.swaps
  )
  print("a step with retrieval (target: a ratio of at most 1.1)")
  print(flags.table([retrieval]))
  print(f"swaps of {corpus.num_blocks:,} blocks (target: at most 1.5)")
  print(flags.table(swaps))
  result = {"retrieval": retrieval, "swaps": swaps}
  flags.write(options, {**result, "num_blocks": corpus.num_blocks})


if __name__ == "__main__":
  main()
