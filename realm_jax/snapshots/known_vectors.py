"""Vectors that need not be embedded, because a checkpoint or snapshot has them.

They follow from the parameters of a step and the text of a block.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.partitioning.agreement import Agreement
from realm_jax.snapshots.manifest import Manifest, SnapshotError
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.snapshots.vectors import Embeddings


class KnownVectors(NamedTuple):
  """Vectors that need not be embedded, for the rows of a corpus.

  Attributes:
    rows: Row of each block among the vectors; `NULL_ROW` for a new block.
    gather: Function from rows of the vectors to these, in float32.
    oldest_step: Checkpoint step that the oldest of them was embedded with.
    base: Snapshot that they are of; None if a checkpoint or an import has
      them.
  """

  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], Float[np.ndarray, "n d"]]
  oldest_step: int
  base: Manifest | None = None


def checkpoint_vectors(
  checkpoints: CheckpointStore, step: int, corpus: Corpus
) -> KnownVectors | None:
  """Returns the vectors of all blocks, if a run kept its rolling index.

  Raises:
    CheckpointError: They cannot be read.
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
  """Returns the vectors of the step's snapshot on another corpus version.

  Then only the blocks that have changed are embedded. The `corpus`, `model` and
  `dtype` are those of the new snapshot. All processes of the agreement call
  this, and copy the same vectors.
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
    # Vectors follow from the text: a block with another one is another block.
    hashes = version.content_hashes
    order = np.argsort(hashes, kind="stable")
    place = np.searchsorted(hashes, corpus.content_hashes, sorter=order)
    found = order[np.minimum(place, len(hashes) - 1)]
    is_same = hashes[found] == corpus.content_hashes
    rows = np.where(is_same, found, NULL_ROW).astype(np.int32)
    return KnownVectors(rows, vectors.gather, base.oldest_step, base)

  try:
    if agreement.on_process_0("base", has_base):
      return agreement.on_all_processes("vectors of the base", opened)
  except (SnapshotError, CorpusError) as error:
    logging.warning("no vector of snapshot %d is kept: %s", step, error)
  return None
