"""Compares the recall of partial refreshes with that of full refreshes.

    python -m benchmarks.partial_refresh --json=partial_refresh.json

Pre-training with the demo's recipe keeps a checkpoint every few steps. Then two
sidecars with the same arithmetic follow that run offline: one embeds every
block, which takes 3 T steps; the other embeds a third of the tokens, including
the sample for drift correction, which takes T. A generation is in use from its
publication until that of the next one. At each checkpoint, recall@8 is the
share of the 8 blocks with the highest scores under the current parameters that
the generation in use returns, with its own query tower, as in training. It is
averaged over the checkpoints. The queries are held out: sentences with other
masks than in training.
"""

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from benchmarks.data import demo_corpus
from benchmarks.retrieval_overhead import index_builder
from benchmarks.runs.followed_run import Run, follow
from realm_jax import configuration
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.generations.building.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.indexes.exact import ExactConfig
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.models.retriever import Retriever, embed_queries
from realm_jax.partitioning import cpu_tuning
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig

_RECIPES = "gin/experiments/demo"
# Same values as in gin/experiments/demo.
_BATCH_SIZE, _QUERY_LENGTH = 16, 14
_HELD_OUT_SEED = 1_000_003
_HELD_OUT_BATCHES = 32
_FRACTION = 1 / 3

VARIANTS: Mapping[str, PartialRefresh] = {
  "oldest first": PartialRefresh(
    fraction=_FRACTION, drift_correction=False, sample_fraction=0.0
  ),
  "with drift correction": PartialRefresh(fraction=_FRACTION),
}


def train(directory: Path, *, steps: int, every: int, scale: float) -> None:
  """Runs the demo's stages up to pre-training, resuming an earlier run."""
  corpus = directory / "corpus"
  if not corpus.exists():
    demo_corpus.make_corpus(directory, scale=scale)

  def stage(name: str, recipe: str, *more: str) -> None:
    bindings = [
      f'MODEL_DIR = "{directory / name}"',
      f'CORPUS_DIR = "{corpus}"',
      *more,
    ]
    with configuration.parsed([f"{_RECIPES}/{recipe}.gin"], bindings):
      config = configuration.configured(TrainConfig)()
    loop.train(config)

  stage("inverse_cloze", "inverse_cloze")
  stage("reading", "reading")
  with index_builder(directory / "realm", corpus):
    stage(
      "realm",
      "pretrain",
      f'INITIAL_CHECKPOINT = "{directory / "inverse_cloze"}"',
      f'INITIAL_READER = "{directory / "reading"}"',
      f"NUM_STEPS = {steps}",
      f"SAVE_EVERY_STEPS = {every}",
      f"KEEP_CHECKPOINTS = {steps}",
    )


def embed_run(directory: Path) -> Run:
  """Embeds blocks and held-out queries with every checkpoint."""
  corpus = Corpus.open(directory / "corpus")
  with configuration.parsed([f"{_RECIPES}/build_index.gin"], _bound(directory)):
    retriever = configuration.configured(Retriever)()
  artifacts = ArtifactWriter(
    corpus,
    retriever,
    index=ExactConfig(),
    config=EmbeddingConfig(query_length=_QUERY_LENGTH, recall_queries=2),
    mesh=make_mesh(),
  )
  store = CheckpointStore(directory / "realm")
  steps = store.steps()
  embed = jax.jit(
    functools.partial(
      embed_queries,
      retriever.for_vocabulary(
        vocab_size=corpus.vocab_size,
        separator_id=corpus.vocabulary.sep_id,
      ),
    )
  )

  held_out = _held_out_queries(corpus)
  blocks, queries = {}, {}
  for step in steps:
    like = {"retriever": artifacts.abstract_params()}
    params = store.restore(step, items=("retriever",), like=like)["retriever"]
    rows = np.arange(corpus.num_blocks)
    blocks[step] = artifacts.embedder.embed(params, rows)
    queries[step] = np.asarray(embed(params, held_out))
  store.close()
  return Run(
    steps=tuple(steps),
    blocks=blocks,
    held_out=queries,
    costs=artifacts.embedder.costs(),
    normalize=retriever.normalize,
  )


def _held_out_queries(corpus: Corpus) -> Int[np.ndarray, "n q"]:
  stream = BatchStream(
    DataConfig(
      task="masked_salient_spans",
      corpus_dir=corpus.source,
      batch_size=_BATCH_SIZE,
      query_length=_QUERY_LENGTH,
      block_length=demo_corpus.BLOCK_LENGTH,
      seed=_HELD_OUT_SEED,
    )
  )
  with contextlib.closing(stream):
    pairs = zip(range(_HELD_OUT_BATCHES), stream, strict=False)
    return np.concatenate([batch.arrays["query"] for _, batch in pairs])


def _bound(directory: Path) -> list[str]:
  return [
    f'MODEL_DIR = "{directory / "realm"}"',
    f'CORPUS_DIR = "{directory / "corpus"}"',
  ]


def measure(run: Run, cadence: int) -> Iterator[dict[str, Any]]:
  """Yields rows of full refreshes every 3 T, and of partial ones every T."""
  begin = 6 * cadence
  yield {
    "cadence": cadence,
    "refresh": "full",
    **follow(run, cadence=3 * cadence, config=None, begin=begin),
  }
  for name, config in VARIANTS.items():
    yield {
      "cadence": cadence,
      "refresh": name,
      **follow(run, cadence=cadence, config=config, begin=begin),
    }
  yield {
    "cadence": cadence,
    "refresh": "full, as often",
    **follow(run, cadence=cadence, config=None, begin=begin),
  }


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--steps", type=int, default=400, help="training steps")
  parser.add_argument(
    "--every", type=int, default=10, help="steps between checkpoints"
  )
  parser.add_argument(
    "--scale",
    type=float,
    default=1.0,
    help="size of the world; 1 is the demo's",
  )
  parser.add_argument(
    "--directory", help="folder to keep; an earlier run in it is resumed"
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  with tempfile.TemporaryDirectory(prefix="realm_partial_") as scratch:
    directory = Path(given.directory or scratch).resolve()
    train(directory, steps=given.steps, every=given.every, scale=given.scale)
    run = embed_run(directory)
  rows = [
    row
    for cadence in (given.every, 2 * given.every)
    for row in measure(run, cadence)
  ]
  print(
    f"{'T':>4} {'refresh':<24} {'recall@8':>8} {'share':>6} {'oldest':>6} "
    f"{'drift':>6}"
  )
  for row in rows:
    print(
      f"{row['cadence']:4d} {row['refresh']:<24} {row['recall_at_8']:8.4f} "
      f"{row['embedded_share']:6.3f} {row['oldest_steps']:6d} "
      f"{row['drift_left']:6.3f}"
    )
  if given.json:
    write_json(
      given.json,
      {
        "num_blocks": len(run.costs),
        "steps": list(run.steps),
        "fraction": _FRACTION,
        "rows": rows,
      },
    )


if __name__ == "__main__":
  main()
