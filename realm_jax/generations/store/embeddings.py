"""The vectors of a generation: files of rows, memory-mapped."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from jaxtyping import Float, Float32, Int, Int32

from realm_jax.console.progress import Progress
from realm_jax.generations.store.manifest import (
  DamagedGenerationError,
  EmbeddingsShard,
  GenerationError,
  Manifest,
)
from realm_jax.indexes import npy
from realm_jax.indexes.protocol import Rows

DTYPES = {
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# A file's vectors are in memory while they are embedded.
_MAX_SHARD_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class ShardLayout:
  """How vectors are cut into files of consecutive rows.

  Attributes:
    num_blocks: rows of all files together.
    dim: of the vectors.
    dtype: of the stored vectors, `float32` or `bfloat16`.
    rows_per_shard: of all files but the last.
  """

  num_blocks: int
  dim: int
  dtype: str
  rows_per_shard: int

  @classmethod
  def of(
    cls, num_blocks: int, dim: int, *, dtype: str, most_rows: int
  ) -> "ShardLayout":
    """Files of about the same size, none of more than `most_rows`.

    Raises:
      ValueError: an unknown dtype, or no row a file.
    """
    if dtype not in DTYPES:
      raise ValueError(f"dtype={dtype!r}; want one of {', '.join(DTYPES)}")
    if most_rows < 1:
      raise ValueError(f"shard_blocks={most_rows}; want at least 1 a file")
    row_bytes = dim * DTYPES[dtype].itemsize
    most = max(1, min(most_rows, _MAX_SHARD_BYTES // row_bytes))
    count = max(1, -(-num_blocks // most))
    return cls(num_blocks, dim, dtype, max(1, -(-num_blocks // count)))

  def __len__(self) -> int:
    return max(1, -(-self.num_blocks // self.rows_per_shard))

  def rows(self, shard: int) -> Int[np.ndarray, " n"]:
    """The rows of a file."""
    start = shard * self.rows_per_shard
    stop = min(start + self.rows_per_shard, self.num_blocks)
    return np.arange(start, stop)

  def name(self, shard: int) -> str:
    """The name of a file of vectors."""
    return f"embeddings-{shard:05d}-of-{len(self):05d}.npy"

  def steps_name(self, shard: int) -> str:
    """The name of the file of the steps that its vectors are of."""
    return f"steps-{shard:05d}-of-{len(self):05d}.npy"


def write_shard(
  directory: Path,
  layout: ShardLayout,
  shard: int,
  vectors: Float[np.ndarray, "n d"],
  steps: Int[np.ndarray, " n"],
) -> EmbeddingsShard:
  """Writes the files of one shard; the caller makes them durable.

  Args:
    directory: where they go.
    layout: which rows they hold.
    shard: which of its files.
    vectors: of those rows.
    steps: the checkpoints that these were embedded with.

  Raises:
    GenerationError: a vector is not finite.
    OSError: the disk is full.
  """
  finite = np.isfinite(vectors).all(axis=1)
  if not finite.all():
    row = int(layout.rows(shard)[~finite][0])
    raise GenerationError(
      f"the vector of block {row} is not finite; the checkpoint is broken"
    )
  npy.save(directory / layout.name(shard), vectors.astype(DTYPES[layout.dtype]))
  oldest, newest = int(steps.min()), int(steps.max())
  steps_path = ""
  if oldest != newest:
    steps_path = layout.steps_name(shard)
    npy.save(directory / steps_path, steps.astype(np.int32))
  return EmbeddingsShard(
    layout.name(shard), len(vectors), oldest, newest, steps_path
  )


def copy(
  vectors: Rows,
  directory: Path,
  layout: ShardLayout,
  *,
  step: int,
  check: Callable[[], None] = lambda: None,
) -> tuple[EmbeddingsShard, ...]:
  """Writes vectors that are known already, a file's in memory at a time.

  Args:
    vectors: in row order.
    directory: where the files go.
    layout: of as many, of the same dimension.
    step: the checkpoint that they are of.
    check: called at every file; what it raises ends the work.

  Raises:
    GenerationError: there are more or fewer vectors, they are of another
      dimension, or one is not finite.
  """
  if tuple(vectors.shape) != (layout.num_blocks, layout.dim):
    raise GenerationError(
      f"vectors of shape {list(vectors.shape)} for {layout.num_blocks} blocks "
      f"and a retriever of {layout.dim} dimensions; want one for each "
      "block, of the retriever's dimension"
    )
  shards = []
  with Progress("vectors copied", total=layout.num_blocks) as progress:
    for shard in range(len(layout)):
      check()
      rows = layout.rows(shard)
      part = np.asarray(vectors[int(rows[0]) : int(rows[-1]) + 1])
      steps = np.full(len(part), step)
      shards.append(write_shard(directory, layout, shard, part, steps))
      progress.advance(len(part))
  return tuple(shards)


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
    # Mapped now: what is staged has no name any more when it is read.
    self._steps = [
      _map(directory / shard.steps_path, (shard.rows,), np.dtype(np.int32))
      if shard.steps_path
      else np.broadcast_to(np.int32(shard.oldest_step), shard.rows)
      for shard in manifest.embeddings
    ]

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

  def steps(self, rows: Int[np.ndarray, " n"]) -> Int32[np.ndarray, " n"]:
    """The checkpoints that the vectors of some rows were embedded with."""
    steps = np.empty(len(rows), np.int32)
    of = np.searchsorted(self._starts, rows, side="right") - 1
    for shard in np.unique(of):
      here = of == shard
      steps[here] = self._steps[shard][rows[here] - self._starts[shard]]
    return steps


def _starts(shards: Sequence[EmbeddingsShard]) -> np.ndarray:
  return np.cumsum([0] + [shard.rows for shard in shards])[:-1]


def _map(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  try:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
  except (ValueError, EOFError, OSError) as error:
    raise DamagedGenerationError(f"{path} is not an array: {error}") from error
  if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
    # The file format has no name for bfloat16: it comes back as plain bytes.
    mapped = mapped.view(dtype)
  if mapped.shape != shape or mapped.dtype != dtype:
    raise GenerationError(
      f"{path} holds {mapped.dtype}{list(mapped.shape)} and its manifest says "
      f"{dtype}{list(shape)}"
    )
  return mapped
