"""The artifacts of a generation: vectors, index, query tower and manifest."""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh
from jaxtyping import UInt64

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.files import npy
from realm_jax.files.json_file import JsonValue
from realm_jax.generations.building import recall
from realm_jax.generations.building.base_generation import block_keys
from realm_jax.generations.building.corpus_embedder import (
  CorpusEmbedder,
  abstract_retriever,
)
from realm_jax.generations.building.draft import StoredVectors
from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.generations.store import embeddings, query_tower
from realm_jax.generations.store.manifest import (
  Manifest,
  PartialRecord,
  json_checksum,
)
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexConfig,
  QueryBatch,
  Rows,
)
from realm_jax.indexes.registry import parameters_of
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import (
  Retriever,
  embed_blocks,
  embed_queries,
  query_tower_parameters,
)
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.settings import PositiveInt, Range, require_valid

_BLOCK_KEYS = "block_keys.npy"


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
  """Settings of embedding and of measuring recall.

  Attributes:
    stored_dtype: Type of the stored vectors, `float32` or `bfloat16`.
    tokens_per_batch: Upper bound on rows times length of a batch, which bounds
      the memory of activations.
    num_lengths: Upper bound on the number of batch lengths. More lengths mean
      less padding and more compilations.
    shard_blocks: Upper bound on the rows of a file of vectors. A worker embeds
      one file at a time, and loses it if it is killed.
    query_length: Length of the held-out queries.
    recall_queries: Number of held-out queries, at least 2. An index that tunes
      itself does so on half of them; recall is measured on the others.
    recall_at: Values of k for recall@k; those above the corpus are skipped.
  """

  stored_dtype: Literal["float32", "bfloat16"] = "float32"
  tokens_per_batch: PositiveInt = 16_384
  num_lengths: PositiveInt = 16
  shard_blocks: PositiveInt = 1 << 18
  query_length: Annotated[int, Range(least=3)] = 64
  # One to tune an index on, and another to measure it on.
  recall_queries: Annotated[int, Range(least=2)] = 512
  recall_at: Sequence[PositiveInt] = (8, 100)

  def __post_init__(self) -> None:
    require_valid(self)


class ArtifactWriter:
  """Writes generations of one corpus version, and compiles once for all.

  The `retriever` may be for another vocabulary. Without a `config` of embedding
  it takes the defaults. With a `partial` refresh it writes keys of the blocks,
  too. The `mesh` is of this process's devices.
  """

  def __init__(
    self,
    corpus: Corpus,
    retriever: Retriever,
    *,
    index: IndexConfig,
    config: EmbeddingConfig | None = None,
    partial: PartialRefresh | None = None,
    mesh: Mesh,
  ):
    # The null block is [CLS] [SEP] [SEP] in any vocabulary.
    separator_id = int(corpus.gather(np.array([NULL_ROW]), 3)[0, 1])
    self.retriever = retriever.for_vocabulary(
      vocab_size=corpus.vocab_size, separator_id=separator_id
    )
    self.corpus = corpus
    self.index = index
    self.partial = partial
    self._config = config = config or EmbeddingConfig()
    self._mesh = mesh
    self.layout = embeddings.ShardLayout.of(
      corpus.num_blocks,
      self.retriever.vector_size,
      dtype=config.stored_dtype,
      max_rows=config.shard_blocks,
    )
    self.embedder = CorpusEmbedder(
      corpus,
      shared_partial(embed_blocks, self.retriever),
      dim=self.retriever.vector_size,
      mesh=mesh,
      tokens_per_batch=config.tokens_per_batch,
      rows_per_call=self.layout.rows_per_shard,
      num_lengths=config.num_lengths,
    )
    self._embed_queries = jax.jit(shared_partial(embed_queries, self.retriever))
    self._queries = recall.held_out_queries(
      corpus, count=config.recall_queries, query_length=config.query_length
    )

  def abstract_params(self) -> Params:
    """Returns the shapes of the retriever's parameters, with shardings."""
    return abstract_retriever(self.retriever, self._mesh)

  def replaces(self, manifest: Manifest, *, any_version: bool = False) -> bool:
    """Returns whether a published generation has other settings or blocks.

    With `any_version`, those of an earlier corpus version are the same.
    """
    # As a manifest holds them, without tuples.
    parameters = json.loads(json.dumps(parameters_of(self.index)))
    if (manifest.index_kind, manifest.index_parameters, manifest.dtype) != (
      self.index.kind,
      parameters,
      self._config.stored_dtype,
    ):
      return True
    if manifest.corpus_fingerprint == self.corpus.fingerprint:
      return False
    return not any_version or not self.corpus.has_version(
      manifest.corpus_version, manifest.corpus_fingerprint
    )

  @functools.cached_property
  def model(self) -> str:
    """The checksum of the retriever's settings, parameter shapes and pieces."""
    params = traverse_util.flatten_dict(self.abstract_params(), sep="/")
    return json_checksum(
      {
        "retriever": repr(self.retriever),
        "parameters": {name: repr(x.shape) for name, x in params.items()},
        "vocabulary": self.corpus.vocab_sha256,
      }
    )

  @functools.cached_property
  def keys(self) -> UInt64[np.ndarray, " N"]:
    """The keys by which a partial refresh finds blocks."""
    return block_keys(self.corpus)

  def identity(
    self, params: Params, base: Manifest | None
  ) -> dict[str, JsonValue]:
    """Returns everything that determines the vectors, copied ones included.

    The index's settings are among it, so that an index with others is written
    to another folder and not over one that readers may be loading.
    """
    digest = hashlib.sha256()
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    for name, array in sorted(flat.items()):
      digest.update(f"{name} {array.dtype} {array.shape}".encode())
      digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    identity: dict[str, JsonValue] = {
      "model": self.model,
      "parameters": digest.hexdigest(),
      "corpus": self.corpus.fingerprint,
      "batches": [self._config.tokens_per_batch, *self.embedder.lengths],
      "index": {self.index.kind: dict(parameters_of(self.index))},
    }
    if base is not None and self.partial is not None:
      # A manifest has the checksums of all files.
      manifest = base.to_json().encode()
      identity["earlier"] = hashlib.sha256(manifest).hexdigest()
      identity["partial"] = dataclasses.asdict(self.partial)
    return identity

  def store(
    self, directory: Path, vectors: Rows, *, step: int
  ) -> StoredVectors:
    """Writes existing vectors to a generation's directory.

    Raises:
      GenerationError: Their number or dimension is wrong, or one is not finite.
    """
    start = time.monotonic()
    shards = embeddings.copy_vectors(vectors, directory, self.layout, step=step)
    return StoredVectors(shards, (), time.monotonic() - start)

  def write(
    self,
    directory: Path,
    *,
    step: int,
    params: Params,
    stored: StoredVectors,
    partial: PartialRecord | None = None,
    previous: Path | None = None,
    check: Callable[[], None] = lambda: None,
  ) -> Manifest:
    """Adds the other artifacts to a local directory that holds the vectors.

    The retriever's `params` are on the devices. The index may start from the
    files of an earlier one, `previous`. The function `check` is called
    regularly; an exception stops the work.

    Returns:
      The manifest. Its `files` are those of the vectors, as they should be.

    Raises:
      RecallError: The recall of the index is below what its settings want.
    """
    if self.partial is not None:
      npy.save(directory / _BLOCK_KEYS, self.keys)
    query_tower.save(
      directory, jax.device_get(query_tower_parameters(self.retriever, params))
    )
    manifest = Manifest(
      step=step,
      corpus_fingerprint=self.corpus.fingerprint,
      corpus_version=self.corpus.version,
      num_blocks=self.corpus.num_blocks,
      dim=self.retriever.vector_size,
      dtype=self._config.stored_dtype,
      index_kind=self.index.kind,
      index_parameters=parameters_of(self.index),
      recall={},
      recall_queries=0,
      embed_seconds=round(stored.seconds, 3),
      build_seconds=0.0,
      embeddings=stored.shards,
      model=self.model,
      partial=partial,
      block_keys="" if self.partial is None else _BLOCK_KEYS,
      files=stored.files,
    )
    check()
    vectors = embeddings.Embeddings(directory, manifest)
    # Recall is measured on other queries than those the index is tuned on.
    queries = np.asarray(self._embed_queries(params, self._queries))
    for_tuning, for_recall = (
      QueryBatch(self._queries[half::2], queries[half::2]) for half in (0, 1)
    )
    start = time.monotonic()
    index = self.index.build(
      embeddings.index_blocks(self.corpus, vectors),
      BuildOptions(
        directory=directory / self.index.kind,
        queries=for_tuning,
        previous=previous,
        check=check,
      ),
    )
    build_seconds = time.monotonic() - start
    check()
    recall_at = {}
    if index.needs_vectors:
      recall_at = recall.measure_recall(
        index, vectors, for_recall, self._config.recall_at
      )
    return dataclasses.replace(
      manifest,
      recall=recall_at,
      recall_queries=len(for_recall.token_ids),
      build_seconds=round(build_seconds, 3),
      index_report=index.report,
    )
