"""Writes the vectors of a trained model for `benchmarks.index --base`.

    python -m benchmarks.trained_vectors --model_dir=runs/minilm \\
      --corpus_dir=corpus --gin_file=runs/minilm/model.gin \\
      --gin_file=gin/runs/build_index.gin --output_dir=out/minilm_vectors

The gin files are those of the run's index builder. The block vectors of the
newest generation are written to base.npy. Sentences of random blocks are
embedded as queries with that generation's own tower and written to
base_queries.npy.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.data.query_vectors import query_vectors
from benchmarks.runs.jobs import as_gin
from realm_jax import configuration
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import load_newest
from realm_jax.generations.store import layout

_RECIPE = "benchmarks/trained_vectors.gin"


def make_parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--model_dir", type=Path, required=True, help="folder of a run"
  )
  parser.add_argument(
    "--corpus_dir",
    type=Path,
    required=True,
    help="corpus that the run searches",
  )
  parser.add_argument(
    "--gin_file",
    action="append",
    required=True,
    help="gin file of the run's index builder, repeatable",
  )
  parser.add_argument(
    "--output_dir", type=Path, required=True, help="folder for the two files"
  )
  parser.add_argument(
    "--queries", type=int, default=4096, help="number of queries to embed"
  )
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Loads the newest generation and writes the two files."""
  given = make_parser().parse_args(arguments)
  bindings = [
    f"MODEL_DIR = {as_gin(given.model_dir)}",
    f"CORPUS_DIR = {as_gin(given.corpus_dir)}",
  ]
  generation = load_newest(
    given.model_dir / layout.FOLDER, corpus=Corpus.open(given.corpus_dir)
  )
  vectors = generation.vectors(np.arange(generation.num_blocks))
  with configuration.parsed([*given.gin_file, _RECIPE], bindings):
    queries = configuration.configured(query_vectors)(
      generation=generation, count=given.queries
    )
  given.output_dir.mkdir(parents=True, exist_ok=True)
  for name, array in (("base", vectors), ("base_queries", queries)):
    path = given.output_dir / f"{name}.npy"
    np.save(path, array)
    print(f"{path}: {array.shape[0]:,} vectors of {array.shape[1]} dimensions")


if __name__ == "__main__":
  main()
