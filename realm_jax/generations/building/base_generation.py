"""Vectors that need not be embedded: of a base generation or a checkpoint."""

from pathlib import Path

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int, UInt64

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.generations.building.partial_refresh import KnownVectors
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import Embeddings
from realm_jax.generations.store.generation_files import GenerationFiles
from realm_jax.generations.store.manifest import GenerationError, Manifest

_ROWS_PER_READ = 1 << 14


def find_base_generation(
  generations_dir: epath.PathLike,
  step: int,
  *,
  corpus: Corpus,
  model: str,
  dtype: str,
) -> Manifest | None:
  """Returns the newest generation from which vectors can be copied.

  It is of an earlier step, or of the same step on another version of the
  corpus: then only blocks that have changed are embedded. If there is none, the
  reason is logged.

  The `step`, `corpus`, `model` (see `ArtifactWriter.model`) and `dtype` are
  those of the new generation.
  """
  reason = "there is no earlier generation"
  for other in reversed(layout.published_steps(generations_dir)):
    if other > step:
      continue
    directory = layout.path_of(generations_dir, other)
    try:
      manifest = manifests.read(directory)
      manifests.verify(directory, manifest, checksums=False)
    except GenerationError as error:
      reason = str(error)
      logging.warning("generation %d is not used as base: %s", other, reason)
      continue
    same_corpus = manifest.corpus_fingerprint == corpus.fingerprint
    if other == step and same_corpus:
      continue  # The new generation replaces it.
    if (manifest.model, manifest.dtype) != (model, dtype):
      reason = f"generation {other} is of another model or dtype"
    elif not same_corpus and not manifest.block_keys:
      reason = (
        f"generation {other} is of another corpus and has no keys by which to "
        "find its blocks"
      )
    else:
      return manifest
    logging.warning("generation %d is not used as base: %s", other, reason)
    if other == step:
      break  # An earlier base would replace most vectors by older ones.
  logging.info("generation %d embeds every block: %s", step, reason)
  return None


def open_base_vectors(
  generations_dir: epath.PathLike,
  manifest: Manifest,
  keys: UInt64[np.ndarray, " N"],
  *,
  corpus: Corpus,
) -> KnownVectors:
  """Opens the vectors of the base by the rows of a corpus.

  Local files are verified here, and those on an object store as each is copied,
  when it is first read. The `keys` are the corpus's, as `block_keys` returns
  them.

  Raises:
    GenerationError: A file is missing or damaged.
  """
  files = GenerationFiles(
    layout.path_of(generations_dir, manifest.step), manifest
  )
  vectors = Embeddings(files, manifest)
  rows = np.arange(manifest.num_blocks, dtype=np.int32)
  if manifest.corpus_fingerprint != corpus.fingerprint:
    stored = np.load(files.get([manifest.block_keys]) / manifest.block_keys)
    rows = _rows_by_key(keys, stored)
  if not files.is_copied:
    paths = [shard.path for shard in manifest.embeddings]
    paths += [shard.steps_path for shard in manifest.embeddings]
    files.get([path for path in paths if path])
  return KnownVectors(
    step=manifest.step,
    partials=manifest.partial.partials if manifest.partial else 0,
    rows=rows,
    gather=vectors.gather,
    steps=vectors.steps,
  )


def checkpoint_vectors(
  checkpoints: CheckpointStore, step: int, corpus: Corpus
) -> KnownVectors | None:
  """Returns the vectors that a checkpoint has of all blocks of a corpus.

  Those of a run that keeps its own index do; of others the result is None.

  Raises:
    CheckpointError: They cannot be read.
  """
  if not checkpoints.has_vectors_of(step, corpus.fingerprint):
    if "vectors" in checkpoints.items(step):
      logging.warning(
        "checkpoint %d has the vectors of another version of the corpus: all "
        "%d blocks are embedded",
        step,
        corpus.num_blocks,
      )
    return None
  item = checkpoints.restore(step, items=("vectors",))["vectors"]
  vectors, steps = (item[name] for name in ("vectors", "steps"))
  return KnownVectors(
    step=step,
    partials=0,
    rows=np.arange(corpus.num_blocks, dtype=np.int32),
    gather=lambda rows: vectors[rows].astype(np.float32),
    steps=lambda rows: steps[rows],
  )


def previous_index(
  generations_dir: epath.PathLike, step: int, *, kind: str
) -> tuple[GenerationFiles, Path] | None:
  """Returns the files of the newest earlier index, if it is of the same kind.

  The new index may start from it, so all of its bytes are verified. What is
  copied from an object store stays as long as the returned files do.
  """
  earlier = [s for s in layout.published_steps(generations_dir) if s < step]
  for other in reversed(earlier):
    path = layout.path_of(generations_dir, other)
    try:
      manifest = manifests.read(path)
    except GenerationError:
      continue
    if manifest.index_kind != kind:
      return None
    files = GenerationFiles(path, manifest)
    try:
      return files, files.get(files.below(kind)) / kind
    except (GenerationError, DiskFullError) as error:
      logging.warning("the index is built without an earlier one: %s", error)
      return None
  return None


def block_keys(corpus: Corpus) -> UInt64[np.ndarray, " N"]:
  """Returns a checksum of each block's tokens, equal in any corpus version.

  Vectors follow from tokens alone: a block with another text is another block,
  and a block in another row is the same.
  """
  factors = np.random.default_rng(0).integers(
    1, np.iinfo(np.uint64).max, corpus.block_length, np.uint64
  )
  keys = np.empty(corpus.num_blocks, np.uint64)
  for start in range(0, corpus.num_blocks, _ROWS_PER_READ):
    rows = np.arange(start, min(start + _ROWS_PER_READ, corpus.num_blocks))
    length = int(corpus.lengths[rows].max())
    tokens = corpus.gather(rows, length).astype(np.uint64)
    keys[rows] = tokens @ (factors[:length] | np.uint64(1))
  # The low bits of a sum of products are the least random ones.
  return keys ^ (keys >> np.uint64(32))


def _rows_by_key(
  keys: UInt64[np.ndarray, " N"], base_keys: UInt64[np.ndarray, " M"]
) -> Int[np.ndarray, " N"]:
  """Returns the row of each block in the base; `NULL_ROW` for a new block."""
  order = np.argsort(base_keys, kind="stable")
  place = np.searchsorted(base_keys, keys, sorter=order)
  rows = order[np.minimum(place, len(base_keys) - 1)]
  return np.where(base_keys[rows] == keys, rows, NULL_ROW).astype(np.int32)
