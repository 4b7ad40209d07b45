"""Generations of any number of blocks, with vectors that were not embedded."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import meta

from benchmarks.data import index_vectors
from realm_jax.corpus.store import Corpus
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
    index_vectors.generate(folder, corpus.num_blocks, seed=step)
    vectors = index_vectors.vectors(folder)
    publish_vectors(builder, store.directory, params, vectors, step=step)
    shutil.rmtree(folder)
  return [Path(store.path(step)) for step in range(count)]


def random_towers(
  retriever: Retriever, corpus: Corpus
) -> tuple[Retriever, Any]:
  """Returns the retriever for the corpus's vocabulary, and its parameters."""
  words = corpus.vocabulary
  retriever = retriever.for_vocabulary(
    vocab_size=words.vocab_size, separator_id=words.sep_id
  )
  tokens = jnp.ones((1, 3), jnp.int32)
  variables = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)
  return retriever, meta.unbox(variables["params"])
