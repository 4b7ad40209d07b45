"""Loads snapshots: verifies their files and prepares their index."""

import dataclasses

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh
from jaxtyping import Float32, Int

from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  Index,
  IndexConfig,
  IndexLoadError,
  config_from,
)
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.snapshots.manifest import Manifest, SnapshotError
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.snapshots.vectors import (
  QUERY_TOWER,
  Embeddings,
  index_blocks,
  load_query_tower,
)


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """A verified snapshot with its index in memory.

  Attributes:
    corpus: Corpus version that the snapshot was built on.
    query_params: Parameters of the query tower that matches the vectors.
    embeddings: Vectors of all blocks, memory-mapped.
  """

  step: int
  manifest: Manifest
  corpus: Corpus
  index: Index
  query_params: Params
  embeddings: Embeddings

  @property
  def oldest_step(self) -> int:
    """Checkpoint step that the oldest vector was embedded with."""
    return self.manifest.oldest_step

  @property
  def num_blocks(self) -> int:
    """Number of blocks."""
    return self.manifest.num_blocks

  @property
  def device_vectors(self) -> jax.Array | None:
    """The stored vectors, sharded over the devices of the index.

    None unless the index is exact and the devices hold the vectors in full
    precision.
    """
    if not isinstance(self.index, ExactIndex):
      return None
    dtype = self.index.vectors.dtype
    is_stored = dtype in (np.dtype(np.float32), self.embeddings.dtype)
    return self.index.vectors if is_stored else None

  def vectors(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """Returns the stored vectors of any rows."""
    return self.embeddings.gather(rows)


def load_snapshot(
  snapshots_dir: epath.PathLike,
  step: int,
  *,
  corpus: Corpus,
  mesh: Mesh | None = None,
  index: IndexConfig | None = None,
  beside_training: bool = False,
  reads_vectors: bool = True,
) -> Snapshot:
  """Verifies and loads the snapshot of a checkpoint step.

  Args:
    snapshots_dir: Directory of the snapshots.
    step: Checkpoint step.
    corpus: Corpus of the snapshot, in any version.
    mesh: Mesh for an index on devices and for the query tower's parameters;
      without one they stay on the host.
    index: Settings of another index to build over the same blocks.
    beside_training: Whether a training run loads the snapshot. Then a thread of
      low priority verifies files, an index that must not load in this process
      gets a separate one, and the vectors of an exact index are read only from
      the devices.
    reads_vectors: Whether the vectors will be read besides the index. If not,
      their files are verified, or copied, only on the first access.

  Raises:
    SnapshotError: The snapshot is missing, or for another corpus.
    DamagedSnapshotError: The snapshot differs from what was published.
    IndexCrashedError: The index's process ended while it loaded.
  """
  store = SnapshotStore(snapshots_dir)
  manifest = store.manifest(step)
  corpus = corpus_of(manifest, corpus, store.path(step))
  files = store.files(manifest, low_priority=beside_training)
  embeddings = Embeddings(files, manifest)
  blocks = index_blocks(corpus, embeddings, mesh=mesh)
  of_index = []
  if index is None:
    of_index = files.paths(f"{manifest.index_folder}/")
  if beside_training and manifest.index_kind == ExactIndex.kind:
    reads_vectors = False
  files.get([QUERY_TOWER, *of_index])
  # Data that was read or mapped stays available if the file is removed.
  query_params = load_query_tower(files.root)
  if mesh is not None:
    query_params = sharding.replicate(query_params, mesh)
  if reads_vectors:
    embeddings.map_all()
  try:
    if index is not None:
      loaded = index.build(blocks)
    else:
      config = config_from(manifest.index_kind, manifest.index_parameters)
      directory = files.root / manifest.index_folder
      if beside_training and config.needs_separate_process:
        loaded = IsolatedIndex(config, directory, blocks)
      else:
        loaded = config.load(directory, blocks)
  except IndexLoadError as error:
    # If files have been removed or changed, report this instead.
    files.get(of_index, again=True)
    raise SnapshotError(f"{store.path(step)}: {error}") from error
  return Snapshot(step, manifest, corpus, loaded, query_params, embeddings)


def load_newest(
  snapshots_dir: epath.PathLike,
  *,
  corpus: Corpus,
  mesh: Mesh | None = None,
  index: IndexConfig | None = None,
) -> Snapshot:
  """Loads the newest valid snapshot; see `load_snapshot`.

  Raises:
    SnapshotError: There is no valid snapshot of the corpus.
  """
  newest_error = None
  for step in reversed(SnapshotStore(snapshots_dir).steps()):
    try:
      return load_snapshot(
        snapshots_dir, step, corpus=corpus, mesh=mesh, index=index
      )
    except SnapshotError as error:
      logging.warning("snapshot %d is not used: %s", step, error)
      newest_error = newest_error or error
  raise newest_error or SnapshotError(
    f"{snapshots_dir} has no snapshot; make one with "
    "`python -m realm_jax.build_index --once`"
  )


def corpus_of(
  manifest: Manifest, corpus: Corpus, directory: epath.Path
) -> Corpus:
  """Returns the version of the corpus that a snapshot was built on."""
  if manifest.corpus_fingerprint == corpus.fingerprint:
    return corpus
  try:
    other = corpus.at(manifest.corpus_version, manifest.corpus_fingerprint)
  except CorpusError as error:
    raise SnapshotError(
      f"{directory} is of another corpus: fingerprint "
      f"{manifest.corpus_fingerprint[:12]} with {manifest.num_blocks} blocks, "
      f"and {corpus.source} has {corpus.fingerprint[:12]} with "
      f"{corpus.num_blocks} ({error}); give the corpus it was built on, or "
      "build a snapshot of this one with `python -m realm_jax.build_index "
      "--once`"
    ) from error
  # Builds the table of ids now, so that no training step waits for it.
  other.rows_of(other.block_ids[:1])
  return other
