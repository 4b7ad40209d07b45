"""Writes the vectors of a trained model, for `benchmarks.index --base`.

    python -m benchmarks.trained_vectors --model_dir=runs/minilm \\
      --corpus_dir=corpus --gin_file=runs/minilm/model.gin \\
      --gin_file=gin/runs/build_index.gin --output_dir=out/minilm_vectors

The gin files are those that the run's index builder was given. The newest
generation's vectors become base.npy, and those of sentences of random blocks,
embedded as queries with that generation's own tower, base_queries.npy.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float32

import gin
from benchmarks.jobs import as_gin
from realm_jax import configuration
from realm_jax.corpus.store import Corpus
from realm_jax.generations import builder, layout
from realm_jax.generations.loaded import Generation, load_newest
from realm_jax.generations.recall import held_out_queries
from realm_jax.models.retriever import Retriever, embed_queries

_BATCH = 256


def query_vectors(
  retriever: Retriever, generation: Generation, *, count: int, length: int
) -> Float32[np.ndarray, "q d"]:
  """Sentences of random blocks, as a generation's own tower embeds them.

  Args:
    retriever: the towers, for any vocabulary.
    generation: whose tower embeds.
    count: of the queries.
    length: of a query, in wordpieces.
  """
  corpus = generation.corpus
  towers = retriever.for_vocabulary(
    vocab_size=corpus.vocab_size, separator_id=corpus.vocabulary.sep_id
  )
  queries = held_out_queries(corpus, count=count, query_length=length)
  embed = jax.jit(functools.partial(embed_queries, towers))
  return np.concatenate(
    [
      np.asarray(
        embed(generation.query_params, queries[start : start + _BATCH]),
        np.float32,
      )
      for start in range(0, count, _BATCH)
    ]
  )


def make_parser() -> argparse.ArgumentParser:
  """The flags."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--model_dir", type=Path, required=True, help="a run's")
  parser.add_argument(
    "--corpus_dir", type=Path, required=True, help="the corpus that it searches"
  )
  parser.add_argument(
    "--gin_file",
    action="append",
    required=True,
    help="of its index builder; repeatable",
  )
  parser.add_argument(
    "--output_dir", type=Path, required=True, help="for the two files"
  )
  parser.add_argument(
    "--queries", type=int, default=4096, help="how many to embed"
  )
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Loads the newest generation and writes the two files."""
  given = make_parser().parse_args(arguments)
  bindings = [
    f"MODEL_DIR = {as_gin(given.model_dir)}",
    f"CORPUS_DIR = {as_gin(given.corpus_dir)}",
  ]
  with configuration.parsed(given.gin_file, bindings):
    bound = gin.get_bindings(builder.build_index)
  directory = bound["generations_dir"] or given.model_dir / layout.FOLDER
  generation = load_newest(directory, corpus=Corpus.open(given.corpus_dir))
  vectors = generation.vectors(np.arange(generation.num_blocks))
  queries = query_vectors(
    bound["retriever"],
    generation,
    count=given.queries,
    length=bound["config"].query_length,
  )
  given.output_dir.mkdir(parents=True, exist_ok=True)
  for name, array in (("base", vectors), ("base_queries", queries)):
    path = given.output_dir / f"{name}.npy"
    np.save(path, array)
    print(f"{path}: {array.shape[0]:,} vectors of {array.shape[1]} dimensions")


if __name__ == "__main__":
  main()
