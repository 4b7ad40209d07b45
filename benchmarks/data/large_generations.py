"""Generations of any number of blocks, with vectors that were not embedded."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.data import index_vectors
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.build import (
  Builder,
  GenerationConfig,
  publish_vectors,
)
from realm_jax.generations.store import GenerationStore
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.weights.model import (
  default_reader,
  fresh_parameters,
  nested,
  parameter_shapes,
)

QUERY_LENGTH = 16
RETRIEVER = Retriever(
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


def make_generations(
  directory: Path, corpus: Corpus, index: IndexConfig, *, count: int
) -> list[Path]:
  """Makes generations 0, 1, … of synthetic vectors, unless they exist already.

  Args:
    directory: Folder of vectors and generations.
    corpus: Corpus of the blocks.
    index: Index to build; use another directory for other settings.
    count: Number of generations.
  """
  store = GenerationStore(directory / f"generations-{corpus.num_blocks}")
  mesh = make_mesh()
  retriever, values = random_towers(RETRIEVER, corpus)
  params = jax.device_put(values, sharding.replicated(mesh))
  config = GenerationConfig(
    retriever, index, query_length=QUERY_LENGTH, recall_queries=64
  )
  builder = Builder(config, corpus, mesh=mesh)
  for step in range(count):
    if step in store.steps():
      continue
    folder = directory / f"vectors-{step}"
    index_vectors.generate("clustered", folder, corpus.num_blocks, seed=step)
    vectors = index_vectors.vectors(folder)
    publish_vectors(builder, store.directory, params, vectors, step=step)
    shutil.rmtree(folder)
  return [Path(store.path(step)) for step in range(count)]


def random_towers(
  retriever: Retriever, corpus: Corpus, *, seed: int = 0
) -> tuple[Retriever, Any]:
  """Returns the retriever for the corpus's vocabulary, and its parameters."""
  separator_id = int(corpus.gather(np.array([NULL_ROW]), 3)[0, 1])
  retriever = retriever.for_vocabulary(
    vocab_size=corpus.vocab_size, separator_id=separator_id
  )
  reader = default_reader(retriever.bert)
  paths = parameter_shapes(retriever, reader, ("retriever",))
  values = fresh_parameters(retriever, reader, paths, seed=seed)
  return retriever, nested(values)["retriever"]
