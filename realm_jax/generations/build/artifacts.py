"""Makes one generation of its vectors: build, measure, and say what it is."""

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from jax.sharding import Mesh
from jaxtyping import Int

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.files import npy
from realm_jax.generations.build import recall
from realm_jax.generations.build.corpus_embedder import CorpusEmbedder
from realm_jax.generations.build.shared_work import (
  StoredVectors,
  identity_digest,
)
from realm_jax.generations.follow.loading import blocks_of
from realm_jax.generations.store import embeddings, query_tower
from realm_jax.generations.store.manifest import Manifest, PartialRecord
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexConfig,
  QueryBatch,
  Rows,
)
from realm_jax.indexes.registry import parameters_of
from realm_jax.models.retriever import Retriever, query_tower_parameters
from realm_jax.partitioning import rules


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
  """How the corpus is embedded and what is measured.

  Attributes:
    dtype: of the stored vectors, `float32` or `bfloat16`.
    tokens_per_batch: bounds the memory of activations.
    num_lengths: the most lengths that batches of blocks have; each compiles
      once, and fewer leave more padding.
    shard_blocks: the most rows of a file of vectors, which one process embeds
      at a time, and loses if it is killed.
    query_length: of the held-out queries.
    recall_queries: how many there are, at least 2; an index that tunes itself
      does so on half of them, and recall is measured on the others.
    recall_at: the k of recall@k; those above the corpus are left out.
  """

  dtype: str = "float32"
  tokens_per_batch: int = 16_384
  num_lengths: int = 16
  shard_blocks: int = 1 << 18
  query_length: int = 64
  recall_queries: int = 512
  recall_at: Sequence[int] = (8, 100)

  def __post_init__(self):
    if self.recall_queries < 2:
      raise ValueError(
        f"recall_queries={self.recall_queries}; want at least 2: one to tune "
        "an index on, and another to measure it on"
      )


class GenerationMaker:
  """Makes the generation of one checkpoint after another, compiling once.

  Args:
    corpus: whose blocks to embed.
    retriever: the towers, for any vocabulary.
    index: the search structure to build.
    config: see `EmbeddingConfig`.
    mesh: where embedding runs, of this process's own devices.
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
    self.layout = embeddings.ShardLayout.of(
      corpus.num_blocks,
      self._retriever.vector_size,
      dtype=config.dtype,
      most_rows=config.shard_blocks,
    )
    self.embedder = CorpusEmbedder(
      corpus,
      functools.partial(_apply, self._retriever, "embed_blocks"),
      dim=self._retriever.vector_size,
      mesh=mesh,
      tokens_per_batch=config.tokens_per_batch,
      rows_at_once=self.layout.rows_per_shard,
      num_lengths=config.num_lengths,
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
  def index_kind(self) -> str:
    """The kind of its search structures."""
    return self._index.kind

  @property
  def normalize(self) -> bool:
    """Whether vectors have length 1."""
    return self._retriever.normalize

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

  @functools.cached_property
  def model(self) -> str:
    """A checksum of the retriever's settings, parameters' names and tokens."""
    params = traverse_util.flatten_dict(self.abstract_params(), sep="/")
    return identity_digest(
      {
        "retriever": repr(self._retriever),
        "parameters": {name: repr(x.shape) for name, x in params.items()},
        "vocabulary": self.vocabulary,
      }
    )

  def identity(self, params: Any) -> dict[str, Any]:
    """All that the vectors of a full embedding follow from."""
    digest = hashlib.sha256()
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    for name, array in sorted(flat.items()):
      digest.update(f"{name} {array.dtype} {array.shape}".encode())
      digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return {
      "model": self.model,
      "parameters": digest.hexdigest(),
      "corpus": self._corpus.fingerprint,
      "batches": [self._config.tokens_per_batch, *self.embedder.lengths],
    }

  def store(
    self, directory: Path, vectors: Rows, *, step: int
  ) -> StoredVectors:
    """Writes vectors that are known already into a generation's directory.

    Raises:
      GenerationError: they are too many, too few, of another dimension than
        the retriever's, or not finite.
    """
    start = time.monotonic()
    shards = embeddings.copy(vectors, directory, self.layout, step=step)
    return StoredVectors(shards, (), time.monotonic() - start)

  def write(
    self,
    directory: Path,
    *,
    step: int,
    params: Any,
    stored: StoredVectors,
    partial: PartialRecord | None = None,
    keys: Int[np.ndarray, " N"] | None = None,
    previous: Path | None = None,
    check: Callable[[], None] = lambda: None,
  ) -> Manifest:
    """Fills a directory that has vectors with the rest of a generation.

    Args:
      directory: of the generation.
      step: the checkpoint's.
      params: its retriever, on the devices.
      stored: the vectors that are there.
      partial: where some of them are an earlier generation's.
      keys: of the blocks, for a builder that takes vectors from this one.
      previous: the index of an earlier generation, to start from.
      check: called now and then; what it raises ends the work.

    Returns:
      The manifest; of its files, those of the vectors, as they should be.

    Raises:
      RecallError: the index finds less than its settings want.
    """
    corpus, config = self._corpus, self._config
    block_keys = ""
    if keys is not None:
      block_keys = "block_keys.npy"
      npy.save(directory / block_keys, keys)
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
      recall_queries=0,
      embed_seconds=round(stored.seconds, 3),
      build_seconds=0.0,
      embeddings=stored.shards,
      model=self.model,
      partial=partial,
      block_keys=block_keys,
      files=stored.files,
    )
    check()
    vectors = embeddings.Embeddings(directory, manifest)
    # What an index is tuned on is not what it is measured on.
    queries = np.asarray(self._embed_queries(params, self._queries))
    for_tuning, for_recall = (
      QueryBatch(self._queries[half::2], queries[half::2]) for half in (0, 1)
    )
    start = time.monotonic()
    index = self._index.build(
      blocks_of(corpus, vectors),
      BuildOptions(
        directory=directory / self._index.kind,
        queries=for_tuning,
        previous=previous,
        check=check,
      ),
    )
    build_seconds = time.monotonic() - start
    check()
    found = {}
    if index.needs_vectors:
      found = recall.measure_recall(
        index, vectors, for_recall, config.recall_at
      )
    return dataclasses.replace(
      manifest,
      recall=found,
      recall_queries=len(for_recall.token_ids),
      build_seconds=round(build_seconds, 3),
      index_report=index.report,
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
