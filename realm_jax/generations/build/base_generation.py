"""The earlier generation that a partial refresh takes vectors from."""

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int, UInt64

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.build.refresh_plan import Stored
from realm_jax.generations.store import embeddings, layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import (
  DamagedGenerationError,
  GenerationError,
  Manifest,
)

_ROWS_AT_ONCE = 1 << 14


@dataclasses.dataclass(frozen=True)
class Earlier:
  """A generation whose manifest is sound."""

  directory: epath.Path
  manifest: Manifest

  @property
  def checksum(self) -> str:
    """Of the manifest, and so of every file."""
    return hashlib.sha256(self.manifest.to_json().encode()).hexdigest()


def find_earlier(
  generations_dir: epath.PathLike,
  step: int,
  *,
  corpus: Corpus,
  model: str,
  dtype: str,
) -> Earlier | None:
  """The newest generation that the vectors of a step's may be taken from.

  That is one before the step, or that of the step itself on another version of
  the corpus: where blocks were changed alone, those alone are embedded.

  Args:
    generations_dir: where generations lie.
    step: of the generation that is made.
    corpus: whose blocks it is of.
    model: what `GenerationMaker.model` says.
    dtype: of the stored vectors.

  Returns:
    None where there is none, after saying why.
  """
  why = "there is no earlier one"
  for there in reversed(layout.published_steps(generations_dir)):
    if there > step:
      continue
    directory = layout.path_of(generations_dir, there)
    is_sound = False
    try:
      manifest = manifests.read(directory)
      manifests.verify(directory, manifest, checksums=False)
    except GenerationError as error:
      why = str(error)
    else:
      is_sound = True
      if there == step and manifest.corpus_fingerprint == corpus.fingerprint:
        continue  # It is to be replaced.
      if (manifest.model, manifest.dtype) != (model, dtype):
        why = f"generation {there} is of another model or dtype"
      elif (
        manifest.corpus_fingerprint != corpus.fingerprint
        and not manifest.block_keys
      ):
        why = (
          f"generation {there} is of another corpus, and does not tell its "
          "blocks"
        )
      else:
        return Earlier(directory, manifest)
    logging.warning("nothing is taken from generation %d: %s", there, why)
    if there == step and is_sound:
      break  # From an earlier one, most blocks would go back to older vectors.
  logging.info("generation %d embeds every block: %s", step, why)
  return None


@contextlib.contextmanager
def opened(
  earlier: Earlier, keys: UInt64[np.ndarray, " N"], *, corpus: Corpus
) -> Iterator[Stored]:
  """The vectors of an earlier generation, by the rows of this corpus.

  Every byte that they are taken from is read first.

  Args:
    earlier: the generation; one on an object store is copied first.
    keys: of this corpus's blocks.
    corpus: this one.

  Raises:
    GenerationError: a file is missing or damaged.
  """
  manifest = earlier.manifest
  with contextlib.ExitStack() as stack:
    local = Path(earlier.directory)
    if layout.is_remote(earlier.directory):
      local = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      for path in _paths(manifest):
        target = local / manifest.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # What is missing, the verification that follows says.
        with contextlib.suppress(FileNotFoundError):
          (earlier.directory / manifest.folder / path).copy(target)
    manifests.verify(
      local, _only(manifest, _paths(manifest)), named=earlier.directory
    )
    files = local / manifest.folder
    vectors = embeddings.Embeddings(files, manifest)
    rows = np.arange(manifest.num_blocks, dtype=np.int32)
    if manifest.corpus_fingerprint != corpus.fingerprint:
      rows = _rows_by_key(keys, _keys_in(files / manifest.block_keys))
    yield Stored(
      step=manifest.step,
      partials=manifest.partial.partials if manifest.partial else 0,
      rows=rows,
      gather=vectors.gather,
      steps=vectors.steps,
    )


def _only(manifest: Manifest, paths: Collection[str]) -> Manifest:
  """The manifest of these files alone."""
  files = tuple(file for file in manifest.files if file.path in paths)
  return dataclasses.replace(manifest, files=files)


def index_before(
  generations_dir: epath.PathLike, step: int, *, kind: str
) -> Path | None:
  """The index of the newest generation before a step, if it is of a kind.

  What it is started from shapes the next, and every byte of it is read.
  """
  if layout.is_remote(generations_dir):
    return None
  before = [s for s in layout.published_steps(generations_dir) if s < step]
  for other in reversed(before):
    path = layout.path_of(generations_dir, other)
    try:
      manifest = manifests.read(path)
    except GenerationError:
      continue
    if manifest.index_kind != kind:
      return None
    paths = [
      file.path for file in manifest.files if file.path.startswith(f"{kind}/")
    ]
    try:
      manifests.verify(path, _only(manifest, paths))
    except GenerationError as error:
      logging.warning("the index is made from nothing: %s", error)
      return None
    return Path(path) / manifest.folder / kind
  return None


def _paths(manifest: Manifest) -> list[str]:
  named = [manifest.block_keys]
  for shard in manifest.embeddings:
    named += [shard.path, shard.steps_path]
  return [path for path in named if path]


def block_keys(corpus: Corpus) -> UInt64[np.ndarray, " N"]:
  """A checksum of each block's tokens, by which any corpus knows it.

  Vectors follow from tokens alone: a block whose text has changed is another,
  and one that has moved is the same.
  """
  factors = np.random.default_rng(0).integers(
    1, np.iinfo(np.uint64).max, corpus.block_length, np.uint64
  )
  keys = np.empty(corpus.num_blocks, np.uint64)
  for start in range(0, corpus.num_blocks, _ROWS_AT_ONCE):
    rows = np.arange(start, min(start + _ROWS_AT_ONCE, corpus.num_blocks))
    length = int(corpus.lengths[rows].max())
    tokens = corpus.gather(rows, length).astype(np.uint64)
    keys[rows] = tokens @ (factors[:length] | np.uint64(1))
  # The low bits of a sum of products are the worst.
  return keys ^ (keys >> np.uint64(32))


def _keys_in(path: Path) -> UInt64[np.ndarray, " M"]:
  try:
    return np.load(path, allow_pickle=False)
  except (ValueError, EOFError, OSError) as error:
    raise DamagedGenerationError(f"{path} is not an array: {error}") from error


def _rows_by_key(
  keys: UInt64[np.ndarray, " N"], there: UInt64[np.ndarray, " M"]
) -> Int[np.ndarray, " N"]:
  """The row there of each block here; `NULL_ROW` where it is not."""
  order = np.argsort(there, kind="stable")
  place = np.searchsorted(there, keys, sorter=order)
  rows = order[np.minimum(place, len(there) - 1)]
  return np.where(there[rows] == keys, rows, NULL_ROW).astype(np.int32)
