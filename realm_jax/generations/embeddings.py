"""The vectors of a generation: files of rows, memory-mapped."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from jaxtyping import Float, Float32, Int

from realm_jax.console.counter import Counter
from realm_jax.generations.manifest import (
  EmbeddingsShard,
  GenerationError,
  Manifest,
)
from realm_jax.indexes.protocol import Rows

_ROWS_PER_COPY = 1 << 16
DTYPES = {
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class EmbeddingsWriter:
  """New files of vectors, into which rows are written in any order.

  The disk space is claimed first: a memory-mapped write to a full disk would
  end the process with a signal instead of an error.

  Args:
    directory: where the files go.
    num_blocks: rows of all files together.
    dim: of the vectors.
    dtype: `float32` or `bfloat16`.
    shard_bytes: files hold about this much.

  Raises:
    OSError: the disk is full.
  """

  def __init__(
    self,
    directory: Path,
    *,
    num_blocks: int,
    dim: int,
    dtype: str = "float32",
    shard_bytes: int = 1 << 30,
  ):
    if dtype not in DTYPES:
      raise ValueError(f"dtype={dtype!r}; want one of {', '.join(DTYPES)}")
    self.shape = (num_blocks, dim)
    row_bytes = dim * DTYPES[dtype].itemsize
    rows = max(1, shard_bytes // row_bytes)
    count = max(1, -(-num_blocks // rows))
    rows = -(-num_blocks // count)
    self._rows_per_shard = rows
    self._maps = []
    shards = []
    for i in range(count):
      name = f"embeddings-{i:05d}-of-{count:05d}.npy"
      here = min(rows, num_blocks - i * rows)
      _claim(directory / name, here * row_bytes + 4096)
      self._maps.append(
        np.lib.format.open_memmap(
          directory / name, mode="w+", dtype=DTYPES[dtype], shape=(here, dim)
        )
      )
      shards.append(EmbeddingsShard(name, here))
    self.shards = tuple(shards)

  def write(
    self, rows: Int[np.ndarray, " n"], vectors: Float[np.ndarray, "n d"]
  ) -> None:
    """Puts vectors in their rows.

    Raises:
      GenerationError: a vector is not finite.
    """
    if not np.isfinite(vectors).all():
      bad = int(rows[~np.isfinite(vectors).all(axis=1)][0])
      raise GenerationError(
        f"the vector of block {bad} is not finite; the checkpoint is broken"
      )
    shards = rows // self._rows_per_shard
    for shard in np.unique(shards):
      here = shards == shard
      local = rows[here] - shard * self._rows_per_shard
      self._maps[shard][local] = vectors[here]

  def close(self) -> None:
    """Writes everything out; the caller makes it durable."""
    for shard in self._maps:
      shard.flush()
    self._maps = []


def copy(
  vectors: Rows,
  writer: EmbeddingsWriter,
  *,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Writes vectors that are known already, a slice in memory at a time.

  Args:
    vectors: in row order.
    writer: takes as many, of the same dimension.
    check: called at every slice; what it raises ends the work.

  Raises:
    GenerationError: there are more or fewer vectors, they are of another
      dimension, or one is not finite.
  """
  if tuple(vectors.shape) != writer.shape:
    raise GenerationError(
      f"vectors of shape {list(vectors.shape)} for {writer.shape[0]} blocks "
      f"and a retriever of {writer.shape[1]} dimensions; want one for each "
      "block, of the retriever's dimension"
    )
  with Counter("vectors copied", total=vectors.shape[0]) as progress:
    for start in range(0, vectors.shape[0], _ROWS_PER_COPY):
      check()
      part = vectors[start : start + _ROWS_PER_COPY]
      writer.write(np.arange(start, start + len(part)), part)
      progress.advance(len(part))


def _claim(path: Path, size: int) -> None:
  with open(path, "xb") as file:
    os.posix_fallocate(file.fileno(), 0, size)


class Embeddings:
  """The vectors of a generation, read from disk as they are asked for.

  Args:
    directory: where the manifest's files lie, locally.
    manifest: of the generation.

  Raises:
    GenerationError: a file is not what the manifest says.
  """

  def __init__(self, directory: Path, manifest: Manifest):
    self.shape = (manifest.num_blocks, manifest.dim)
    self.dtype = DTYPES[manifest.dtype]
    self._maps = [
      _map(directory / shard.path, (shard.rows, manifest.dim), self.dtype)
      for shard in manifest.embeddings
    ]
    self._starts = _starts(manifest.embeddings)

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: slice) -> Float[np.ndarray, "n d"]:
    """Consecutive rows; no copy where one file holds them all."""
    start, stop, stride = rows.indices(len(self))
    if stride != 1:
      raise IndexError(f"stride {stride}; want consecutive rows")
    parts = []
    for first, shard in zip(self._starts, self._maps, strict=True):
      part = shard[max(0, start - first) : max(0, stop - first)]
      if len(part):
        parts.append(part)
    if not parts:
      return np.zeros((0, self.shape[1]), self.dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def gather(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """The vectors of any rows.

    Raises:
      IndexError: a row is not in 0 … N − 1; the null block has no vector.
    """
    rows = np.asarray(rows)
    flat = rows.reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= len(self)):
      raise IndexError(
        f"rows {flat.min()} … {flat.max()} of a generation of {len(self)} "
        "blocks; the null block is not stored"
      )
    gathered = np.empty((flat.size, self.shape[1]), np.float32)
    shards = np.searchsorted(self._starts, flat, side="right") - 1
    for shard in np.unique(shards):
      here = shards == shard
      gathered[here] = self._maps[shard][flat[here] - self._starts[shard]]
    return gathered.reshape(*rows.shape, self.shape[1])


def _starts(shards: Sequence[EmbeddingsShard]) -> np.ndarray:
  return np.cumsum([0] + [shard.rows for shard in shards])[:-1]


def _map(path: Path, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
  try:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
  except (ValueError, EOFError, OSError) as error:
    raise GenerationError(
      f"{path} is not an array of vectors: {error}"
    ) from error
  if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
    # The file format has no name for bfloat16: it comes back as plain bytes.
    mapped = mapped.view(dtype)
  if mapped.shape != shape or mapped.dtype != dtype:
    raise GenerationError(
      f"{path} holds {mapped.dtype}{list(mapped.shape)} and its manifest says "
      f"{dtype}{list(shape)}"
    )
  return mapped
