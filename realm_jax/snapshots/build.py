"""Builds a snapshot from a checkpoint."""

import dataclasses
import functools
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from flax import traverse_util
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.exact import measure_recall
from realm_jax.indexes.protocol import IndexConfig, QueryBatch, Rows, as_config
from realm_jax.models.components import (
  Retriever,
  embed_blocks,
  embed_queries,
)
from realm_jax.models.parameters import Params
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.settings import PositiveInt, Range, require_valid
from realm_jax.snapshots.embedding import CorpusEmbedder, abstract_retriever
from realm_jax.snapshots.manifest import (
  Manifest,
  SnapshotError,
  StoredDtype,
  json_checksum,
)
from realm_jax.snapshots.store import IMPORTED, SnapshotStore
from realm_jax.snapshots.vectors import (
  Draft,
  Embeddings,
  ShardLayout,
  index_blocks,
  save_query_tower,
)
from realm_jax.storage.json_files import JsonValue


@dataclasses.dataclass(frozen=True)
class SnapshotConfig:
  """Settings of the snapshots of a run.

  Attributes:
    retriever: Towers; they are adapted to the vocabulary of the corpus.
    index: Index over the vectors: its settings, or the name of its kind.
    stored_dtype: Type of the stored vectors.
    tokens_per_batch: Upper bound on rows × length of a batch, which bounds the
      memory for activations.
    num_lengths: Upper bound on the number of batch lengths. More lengths mean
      less padding and more compilations.
    shard_blocks: Upper bound on the rows of a file of vectors. A process embeds
      one file at a time, and loses its work on it if it is killed.
    query_length: Length of the held-out queries.
    recall_queries: Number of held-out queries, at least 2. Half are for tuning
      an index; recall is measured on the other half.
    recall_at: Values of k for recall@k; values above the corpus's size are
      skipped.
  """

  retriever: Retriever
  index: IndexConfig | str
  stored_dtype: StoredDtype = "float32"
  tokens_per_batch: PositiveInt = 16_384
  num_lengths: PositiveInt = 16
  shard_blocks: PositiveInt = 1 << 18
  query_length: Annotated[int, Range(least=3)] = 64
  # At least one for tuning, and one for measuring.
  recall_queries: Annotated[int, Range(least=2)] = 512
  recall_at: Sequence[PositiveInt] = (8, 100)

  def __post_init__(self) -> None:
    require_valid(self)
    # Raises an error for an unknown name before anything is embedded.
    _ = self.index_config

  @property
  def index_config(self) -> IndexConfig:
    """Settings of the index."""
    return as_config(self.index)


class KnownVectors(NamedTuple):
  """Vectors that a checkpoint, snapshot or import has, and need no embedding.

  A vector is a function of a step's parameters and a block's text.

  Attributes:
    rows: Row of each block among the vectors; `NULL_ROW` for a new block.
    gather: Function from rows to vectors, in float32.
    oldest_step: Checkpoint step that the oldest vector was embedded with.
    base: Snapshot with these vectors; None if they are from a checkpoint or an
      import.
  """

  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], Float[np.ndarray, "n d"]]
  oldest_step: int
  base: Manifest | None = None


def checkpoint_vectors(
  checkpoints: CheckpointStore, step: int, corpus: Corpus
) -> KnownVectors | None:
  """Returns the vectors of all blocks, if the run keeps a rolling index.

  Raises:
    CheckpointError: The vectors cannot be read.
  """
  if not checkpoints.has_vectors_of(step, corpus.fingerprint):
    if "vectors" in checkpoints.items(step):
      logging.warning(
        "checkpoint %d has the vectors of another version of the corpus", step
      )
    return None
  item = checkpoints.restore(step, items=("vectors",))["vectors"]
  return KnownVectors(
    rows=np.arange(corpus.num_blocks, dtype=np.int32),
    gather=lambda rows: item["vectors"][rows].astype(np.float32),
    oldest_step=int(item["steps"][: corpus.num_blocks].min()),
  )


def known_vectors(
  store: SnapshotStore,
  step: int,
  *,
  corpus: Corpus,
  model: str,
  dtype: str,
  agreement: Agreement,
) -> KnownVectors | None:
  """Returns vectors from the step's snapshot of another corpus version.

  With them, only blocks that have changed are embedded. `corpus`, `model` and
  `dtype` describe the new snapshot. All processes of the agreement call this,
  and copy the same vectors.
  """

  def has_base() -> bool:
    published = store.version(step) is not None
    return published and (
      store.manifest(step).corpus_fingerprint != corpus.fingerprint
    )

  def opened() -> KnownVectors:
    base = store.manifest(step)
    vectors = Embeddings(store.files(base), base)
    if (base.model, base.dtype) != (model, dtype) or not vectors.paths:
      raise SnapshotError("it is of another model or dtype")
    version = corpus.at(base.corpus_version, base.corpus_fingerprint)
    vectors.map_all()
    # Vectors are functions of the text, so blocks are matched by content hash.
    hashes = version.content_hashes
    order = np.argsort(hashes, kind="stable")
    place = np.searchsorted(hashes, corpus.content_hashes, sorter=order)
    candidates = order[np.minimum(place, len(hashes) - 1)]
    is_same = hashes[candidates] == corpus.content_hashes
    rows = np.where(is_same, candidates, NULL_ROW).astype(np.int32)
    return KnownVectors(rows, vectors.gather, base.oldest_step, base)

  try:
    if agreement.on_process_0("base", has_base):
      return agreement.on_all_processes("vectors of the base", opened)
  except (SnapshotError, CorpusError) as error:
    logging.warning("no vector of snapshot %d is kept: %s", step, error)
  return None


class CompiledTowers:
  """The towers, compiled once for all snapshots of one corpus version.

  The mesh has the devices of this process. The attribute `retriever` has the
  vocabulary of the corpus.
  """

  def __init__(
    self, config: SnapshotConfig, corpus: Corpus, *, mesh: Mesh | None = None
  ):
    # The null block is [CLS] [SEP] [SEP] in any vocabulary.
    separator_id = int(corpus.gather(np.array([NULL_ROW]), 3)[0, 1])
    self.retriever = config.retriever.for_vocabulary(
      vocab_size=corpus.vocab_size, separator_id=separator_id
    )
    self.config, self.corpus = config, corpus
    self._mesh = mesh or make_mesh(devices=jax.local_devices())
    self.layout = ShardLayout.of(
      corpus.num_blocks if config.index_config.needs_vectors else 0,
      self.retriever.vector_size,
      dtype=config.stored_dtype,
      max_rows=config.shard_blocks,
    )
    self.embedder = CorpusEmbedder(
      corpus,
      shared_partial(embed_blocks, self.retriever),
      dim=self.retriever.vector_size,
      mesh=self._mesh,
      tokens_per_batch=config.tokens_per_batch,
      rows_per_call=self.layout.rows_per_shard,
      num_lengths=config.num_lengths,
    )
    self.embed_queries = jax.jit(shared_partial(embed_queries, self.retriever))

  def abstract_params(self) -> Params:
    """Returns the shapes of the retriever's parameters, with shardings."""
    return abstract_retriever(self.retriever, self._mesh)

  @functools.cached_property
  def model(self) -> str:
    """Checksum of the retriever's settings, parameter shapes and vocabulary."""
    params = traverse_util.flatten_dict(self.abstract_params(), sep="/")
    return json_checksum(
      {
        "retriever": repr(self.retriever),
        "parameters": {name: repr(x.shape) for name, x in params.items()},
        "vocabulary": self.corpus.vocab_sha256,
      }
    )

  def identity(self, params: Params, known: KnownVectors | None) -> str:
    """Returns a checksum of everything that determines the vectors.

    It includes the index's settings: an index with other settings is written to
    another folder, and not over files that readers may be loading.
    """
    digest = hashlib.sha256()
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    for name, array in sorted(flat.items()):
      digest.update(f"{name} {array.dtype} {array.shape}".encode())
      digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    config, index = self.config, self.config.index_config
    identity: dict[str, JsonValue] = {
      "model": self.model,
      "parameters": digest.hexdigest(),
      "corpus": self.corpus.fingerprint,
      "batches": [config.tokens_per_batch, *self.embedder.lengths],
      "index": {index.kind: dict(vars(index))},
      "shards": dataclasses.asdict(self.layout),
    }
    if known is not None:
      # A manifest has the checksums of all files.
      identity["known"] = "" if known.base is None else known.base.to_json()
    return json_checksum(identity)[:16]

  def queries(self, params: Params) -> tuple[QueryBatch, QueryBatch]:
    """Returns held-out sentences, for tuning and for measuring an index."""
    config, corpus, rng = self.config, self.corpus, np.random.default_rng(0)
    count, total = config.recall_queries, corpus.num_blocks
    rows = rng.choice(total, count, replace=count > total)
    tokens = corpus.random_sentences(rows, config.query_length, rng)
    vectors = np.asarray(self.embed_queries(params, tokens))
    return (
      QueryBatch(tokens[0::2], vectors[0::2]),
      QueryBatch(tokens[1::2], vectors[1::2]),
    )


def build_snapshot(
  towers: CompiledTowers,
  step: int,
  params: Params,
  store: SnapshotStore,
  *,
  agreement: Agreement,
  known: KnownVectors | None = None,
  identity: str | None = None,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Builds and publishes the snapshot of a checkpoint.

  Each process of the agreement embeds its shards (process s mod count has shard
  s), and waits for the others. Then process 0 builds the index, measures its
  recall and commits. An index without vectors has no shards, and an index
  without files is not built. Shards that an interrupted build finished are
  used. The new snapshot replaces one that is published for this step; if that
  one is for another corpus version, the vectors of unchanged blocks are reused.

  Args:
    towers: Compiled towers, with the settings.
    step: Checkpoint step.
    params: Parameters of the retriever, on the devices.
    store: Store of the snapshots.
    agreement: Processes that share the work.
    known: Vectors that need not be embedded.
    identity: Name of the draft; None is the identity of the towers.
    check: Function that is called regularly; an exception stops the work.

  Raises:
    DiskFullError: The disk is full; nothing published has changed.
    DamagedFileError: A shard has changed; the next call embeds it again.
    SnapshotError: A vector is not finite.
    RecallError: The recall of the index is below its settings' minimum.
    ProcessesError: Another process has failed.
  """
  layout = towers.layout
  if known is None and towers.config.index_config.needs_vectors:
    known = known_vectors(
      *(store, step),
      corpus=towers.corpus,
      model=towers.model,
      dtype=layout.dtype,
      agreement=agreement,
    )
  identity = identity or towers.identity(params, known)
  draft = Draft(store.path(step) / identity, layout)
  build = _Build(towers, step, params, store, draft, known, check)
  explained = store.disk_full_explained(step)
  embed = explained(functools.partial(build.embed_shards, agreement))
  seconds = agreement.on_all_processes("shards", embed)
  publish = explained(functools.partial(build.publish, seconds))
  agreement.on_process_0("publication", publish)


@dataclasses.dataclass(frozen=True)
class _Build:
  """One process's part of the build of a snapshot."""

  towers: CompiledTowers
  step: int
  params: Params
  store: SnapshotStore
  draft: Draft
  known: KnownVectors | None
  check: Callable[[], None]

  @functools.cached_property
  def is_new(self) -> Bool[np.ndarray, " N"]:
    """Whether a block's vector must be embedded."""
    if self.known is None:
      return np.ones(self.draft.layout.num_blocks, bool)
    return self.known.rows == NULL_ROW

  def embed_shards(self, agreement: Agreement) -> float:
    """Writes the shards of this process; returns the seconds it took."""
    draft, known, begin = self.draft, self.known, time.monotonic()
    layout, done = draft.layout, draft.records()
    for shard in range(agreement.index, len(layout), agreement.count):
      if shard in done:
        continue
      self.check()
      rows = layout.rows(shard)
      vectors = np.empty((len(rows), layout.dim), np.float32)
      is_new = self.is_new[rows]
      if is_new.any():
        vectors[is_new] = self.towers.embedder.embed(
          self.params, rows[is_new], check=self.check
        )
      if known is not None and not is_new.all():
        vectors[~is_new] = known.gather(known.rows[rows[~is_new]])
      draft.add(shard, vectors)
    return time.monotonic() - begin

  def publish(self, embed_seconds: float) -> None:
    """Builds the index of all shards, measures its recall, and commits."""
    towers, step, check = self.towers, self.step, self.check
    config, corpus, layout = towers.config, towers.corpus, towers.layout
    files = self.draft.verified(are_read=config.index_config.has_files)
    query_tower = towers.retriever.query_tower_parameters(self.params)
    save_query_tower(files.root, jax.device_get(query_tower))
    index_folder = config.index_config.kind
    if files.is_copied:
      # Another builder, which was cut off for long, may still be writing to the
      # bucket.
      index_folder += f"-{secrets.token_hex(4)}"
    vectors, recall, report = Embeddings(files, layout), {}, {}
    build_seconds = 0.0
    if config.index_config.has_files:
      for_tuning, held_out = towers.queries(self.params)
      check()
      start = time.monotonic()
      blocks = index_blocks(corpus, vectors, queries=for_tuning, check=check)
      index = config.index_config.build(blocks, files.root / index_folder)
      build_seconds, report = time.monotonic() - start, dict(index.report)
      check()
      if not index.has_own_scores:
        recall = measure_recall(index, vectors, held_out, config.recall_at)
    others = self.draft.record_others(files.root)
    manifest = Manifest(
      step=step,
      corpus_fingerprint=corpus.fingerprint,
      corpus_version=corpus.version,
      num_blocks=corpus.num_blocks,
      dim=layout.dim,
      dtype=layout.dtype,
      index_kind=config.index_config.kind,
      index_parameters=dict(vars(config.index_config)),
      recall=recall,
      recall_queries=config.recall_queries // 2 if recall else 0,
      embed_seconds=round(embed_seconds, 3),
      build_seconds=round(build_seconds, 3),
      oldest_step=step if self.known is None else self.known.oldest_step,
      model=towers.model,
      index_report=report,
      files=(*files.records, *others),
      folder=self.draft.folder.name,
      index_folder=index_folder,
    )
    check()
    self.store.commit(manifest)
    logging.info(
      "published snapshot %d: %d blocks, %d embedded in %.1f s, %s built in "
      "%.1f s, recall %s",
      *(step, corpus.num_blocks, self.is_new.sum(), embed_seconds),
      *(manifest.index_kind, build_seconds),
      ", ".join(f"@{k} {r:.3f}" for k, r in recall.items()) or "–",
    )


def publish_vectors(
  towers: CompiledTowers,
  snapshots_dir: epath.PathLike,
  params: Params,
  vectors: Rows,
  *,
  step: int = 0,
) -> None:
  """Publishes vectors that were embedded elsewhere, in the blocks' order.

  Raises the errors of `build_snapshot`, and:
    SnapshotError: The vectors' number or dimension is wrong, or one is not
      finite.
  """
  layout = towers.layout
  if tuple(vectors.shape) != (layout.num_blocks, layout.dim):
    raise SnapshotError(
      f"vectors of shape {list(vectors.shape)} for {layout.num_blocks} blocks "
      f"and a retriever of {layout.dim} dimensions; want one for each "
      "block, of the retriever's dimension"
    )
  store = SnapshotStore(snapshots_dir)
  known = KnownVectors(
    rows=np.arange(layout.num_blocks, dtype=np.int32),
    gather=lambda rows: np.asarray(vectors[int(rows[0]) : int(rows[-1]) + 1]),
    oldest_step=step,
  )
  build_snapshot(
    *(towers, step, params, store),
    agreement=Agreement("import"),
    known=known,
    identity=IMPORTED,
  )
