"""The earlier generation that a partial refresh takes vectors from."""

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int, UInt64

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations import embeddings, layout
from realm_jax.generations import manifest as manifests
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.refresh_plan import Stored

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
  """The newest generation before a step that its vectors may be taken from.

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
    if there >= step:
      continue
    directory = layout.path_of(generations_dir, there)
    try:
      manifest = manifests.read(directory)
      manifests.verify(directory, manifest, checksums=False)
    except GenerationError as error:
      why = str(error)
    else:
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
  logging.info("generation %d embeds every block: %s", step, why)
  return None


@contextlib.contextmanager
def opened(
  earlier: Earlier, keys: UInt64[np.ndarray, " N"], *, corpus: Corpus
) -> Iterator[Stored]:
  """The vectors of an earlier generation, by the rows of this corpus.

  Args:
    earlier: the generation; one on an object store is copied first.
    keys: of this corpus's blocks.
    corpus: this one.

  Raises:
    GenerationError: a file is missing, or not of its size.
  """
  manifest = earlier.manifest
  with contextlib.ExitStack() as stack:
    local = Path(earlier.directory)
    if layout.is_remote(earlier.directory):
      local = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      for path in _paths(manifest):
        target = local / manifest.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (earlier.directory / manifest.folder / path).copy(target)
    files = local / manifest.folder
    vectors = embeddings.Embeddings(files, manifest)
    rows = np.arange(manifest.num_blocks, dtype=np.int32)
    if manifest.corpus_fingerprint != corpus.fingerprint:
      rows = _rows_by_key(keys, np.load(files / manifest.block_keys))
    yield Stored(
      step=manifest.step,
      partials=manifest.partial.partials if manifest.partial else 0,
      rows=rows,
      gather=vectors.gather,
      steps=vectors.steps,
    )


def verify(earlier: Earlier) -> None:
  """Reads every byte that vectors are taken from.

  Raises:
    GenerationError: a file is missing or damaged.
  """
  manifest = earlier.manifest
  paths = set(_paths(manifest))
  files = tuple(file for file in manifest.files if file.path in paths)
  manifests.verify(
    earlier.directory, dataclasses.replace(manifest, files=files)
  )


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


def _rows_by_key(
  keys: UInt64[np.ndarray, " N"], there: UInt64[np.ndarray, " M"]
) -> Int[np.ndarray, " N"]:
  """The row there of each block here; `NULL_ROW` where it is not."""
  order = np.argsort(there, kind="stable")
  place = np.searchsorted(there, keys, sorter=order)
  rows = order[np.minimum(place, len(there) - 1)]
  return np.where(there[rows] == keys, rows, NULL_ROW).astype(np.int32)
