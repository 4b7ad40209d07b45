"""The embedding of the index builder, in each length of its batches."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.artifacts import EmbeddingConfig
from realm_jax.generations.building.corpus_embedder import (
  abstract_retriever,
  jitted_embedder,
)
from realm_jax.generations.building.length_batches import (
  choose_lengths,
  length_multiple,
  round_up,
  rows_per_batch,
)
from realm_jax.models.retriever import Retriever, embed_blocks
from realm_jax.partitioning import rules
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.precompilation.programs.program import EMBEDDING, Program
from realm_jax.precompilation.programs.vocabulary import for_vocabulary
from realm_jax.training import useful_flops
from realm_jax.training.stages.model_inputs import Models
from realm_jax.training.useful_flops import Work


def embedding_programs(
  retriever: Retriever,
  config: EmbeddingConfig,
  mesh: Mesh,
  *,
  block_length: int,
  num_blocks: int,
  corpus: Corpus | None = None,
) -> Iterator[Program]:
  """Yields the builder's embedding of a batch of each of its lengths.

  Args:
    retriever: Towers of the recipe.
    config: Settings of the builder.
    mesh: Devices of one worker.
    block_length: Length of all blocks, without a corpus.
    num_blocks: Number of blocks of the corpus that is to be embedded.
    corpus: Corpus whose lengths its blocks have.
  """
  retriever = for_vocabulary(Models(retriever, None), corpus).retriever
  lengths = {block_length: np.array([block_length])}
  if corpus is not None:
    lengths = _by_batch_length(corpus, max_lengths=config.num_lengths)
  known = sum(map(len, lengths.values()))
  embed = jitted_embedder(shared_partial(embed_blocks, retriever), mesh)
  params = abstract_retriever(retriever, mesh)
  for length, blocks in lengths.items():
    rows = rows_per_batch(
      length, config.tokens_per_batch * mesh.size, multiple=mesh.size
    )
    batch = jax.ShapeDtypeStruct(
      (rows, length), jnp.int32, sharding=rules.batch_sharding(mesh)
    )
    flops = useful_flops.tower_flops(retriever, blocks) / len(blocks)
    yield Program(
      kind=EMBEDDING,
      name=f"{rows:,} × {length}",
      function=embed,
      arguments=(params, batch),
      mesh=mesh,
      work=Work(rows * flops, rows * float(blocks.mean())),
      runs=num_blocks * len(blocks) / known / rows,
    )


def _by_batch_length(
  corpus: Corpus, *, max_lengths: int
) -> dict[int, Int[np.ndarray, " n"]]:
  """Returns the lengths of a corpus's blocks, by those of the batches."""
  batch_lengths = choose_lengths(
    corpus.lengths,
    longest=corpus.block_length,
    multiple=length_multiple("tpu"),
    max_lengths=max_lengths,
  )
  rounded = round_up(corpus.lengths, batch_lengths)
  return {n: corpus.lengths[rounded == n] for n in batch_lengths}
