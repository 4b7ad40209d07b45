"""Makes one generation: embed (or take vectors), build, measure."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations import embeddings, query_tower, recall
from realm_jax.generations.corpus_embedder import CorpusEmbedder
from realm_jax.generations.loaded import blocks_of
from realm_jax.generations.manifest import Manifest
from realm_jax.indexes.protocol import IndexConfig, QueryBatch, Rows
from realm_jax.indexes.registry import parameters_of
from realm_jax.models.retriever import Retriever, query_tower_parameters
from realm_jax.partitioning import rules


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
  """How the corpus is embedded and what is measured.

  Attributes:
    dtype: of the stored vectors, `float32` or `bfloat16`.
    tokens_per_batch: bounds the memory of activations.
    length_step: block lengths are rounded up to a multiple of this; each
      distinct one compiles once.
    query_length: of the held-out queries.
    recall_queries: how many there are.
    recall_at: the k of recall@k; those above the corpus are left out.
  """

  dtype: str = "float32"
  tokens_per_batch: int = 16_384
  length_step: int = 32
  query_length: int = 64
  recall_queries: int = 512
  recall_at: Sequence[int] = (8, 100)


class GenerationMaker:
  """Makes the generation of one checkpoint after another, compiling once.

  Args:
    corpus: whose blocks to embed.
    retriever: the towers, for any vocabulary.
    index: the search structure to build.
    config: see `EmbeddingConfig`.
    mesh: where embedding runs.
  """

  def __init__(
    self,
    corpus: Corpus,
    retriever: Retriever,
    *,
    index: IndexConfig,
    config: EmbeddingConfig | None = None,
    mesh: Mesh,
  ):
    # The null block is [CLS] [SEP] [SEP] in any vocabulary.
    separator_id = int(corpus.gather(np.array([NULL_ROW]), 3)[0, 1])
    self._retriever = retriever.for_vocabulary(
      vocab_size=corpus.vocab_size, separator_id=separator_id
    )
    self._corpus = corpus
    self._index = index
    self._config = config = config or EmbeddingConfig()
    self._mesh = mesh
    self._embedder = CorpusEmbedder(
      corpus,
      functools.partial(_apply, self._retriever, "embed_blocks"),
      mesh=mesh,
      tokens_per_batch=config.tokens_per_batch,
      length_step=config.length_step,
    )
    self._embed_queries = jax.jit(
      functools.partial(_apply, self._retriever, "embed_queries")
    )
    self._queries = recall.held_out_queries(
      corpus, count=config.recall_queries, query_length=config.query_length
    )

  @property
  def corpus(self) -> Corpus:
    """Whose blocks it embeds."""
    return self._corpus

  @property
  def vocabulary(self) -> str:
    """The sha256 of the corpus's vocabulary."""
    return self._corpus.vocab_sha256

  def abstract_params(self) -> Any:
    """What a checkpoint's `retriever` must be, with where it should go."""
    tokens = jnp.zeros((1, 3), jnp.int32)
    boxed = jax.eval_shape(
      self._retriever.init, jax.random.key(0), tokens, tokens
    )
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=rules.replicated(self._mesh)
      ),
      nn.unbox(boxed["params"]),
    )

  def replaces(self, manifest: Manifest, *, any_version: bool = False) -> bool:
    """Whether a published generation is not what this builder would make.

    Args:
      manifest: of the generation.
      any_version: whether one of an earlier version of the corpus will do.
    """
    wanted = (
      self._index.kind,
      _as_json(parameters_of(self._index)),
      self._config.dtype,
    )
    if wanted != (
      manifest.index_kind,
      _as_json(manifest.index_parameters),
      manifest.dtype,
    ):
      return True
    if manifest.corpus_fingerprint == self._corpus.fingerprint:
      return False
    return not any_version or not self._corpus.has_version(
      manifest.corpus_version, manifest.corpus_fingerprint
    )

  def write(
    self,
    directory: Path,
    *,
    step: int,
    params: Any,
    vectors: Rows | None = None,
    check: Callable[[], None] = lambda: None,
  ) -> Manifest:
    """Fills a directory with the generation of a checkpoint.

    Args:
      directory: empty.
      step: the checkpoint's.
      params: its retriever, on the devices.
      vectors: of the blocks, in row order, where they are known already; by
        default the blocks are embedded.
      check: called now and then; what it raises ends the work.

    Returns:
      The manifest, but for its files.

    Raises:
      GenerationError: the vectors are too many, too few, of another dimension
        than the retriever's, or not finite.
    """
    corpus, config = self._corpus, self._config
    start = time.monotonic()
    writer = embeddings.EmbeddingsWriter(
      directory,
      num_blocks=corpus.num_blocks,
      dim=self._retriever.vector_size,
      dtype=config.dtype,
    )
    if vectors is None:
      self._embedder.embed(params, writer, check=check)
    else:
      embeddings.copy(vectors, writer, check=check)
    writer.close()
    embed_seconds = time.monotonic() - start
    query_tower.save(
      directory,
      jax.device_get(query_tower_parameters(self._retriever, params)),
    )
    manifest = Manifest(
      step=step,
      corpus_fingerprint=corpus.fingerprint,
      corpus_version=corpus.version,
      num_blocks=corpus.num_blocks,
      dim=self._retriever.vector_size,
      dtype=config.dtype,
      index_kind=self._index.kind,
      index_parameters=parameters_of(self._index),
      recall={},
      recall_queries=config.recall_queries,
      embed_seconds=round(embed_seconds, 3),
      build_seconds=0.0,
      embeddings=writer.shards,
    )
    check()
    stored = embeddings.Embeddings(directory, manifest)
    start = time.monotonic()
    index = self._index.build(blocks_of(corpus, stored))
    index.save(directory / self._index.kind)
    build_seconds = time.monotonic() - start
    check()
    found = {}
    if index.needs_vectors:
      queries = np.asarray(self._embed_queries(params, self._queries))
      found = recall.measure_recall(
        index, stored, QueryBatch(self._queries, queries), config.recall_at
      )
    return dataclasses.replace(
      manifest, recall=found, build_seconds=round(build_seconds, 3)
    )


def _apply(
  retriever: Retriever, method: str, params: Any, token_ids: jax.Array
) -> jax.Array:
  return retriever.apply({"params": params}, token_ids, method=method)


def _as_json(parameters: dict[str, Any]) -> dict[str, Any]:
  """Parameters as a manifest gives them back: tuples are lists there."""
  return {
    name: list(value) if isinstance(value, tuple) else value
    for name, value in parameters.items()
  }
