"""The vectors of a generation, memory-mapped, and its query tower."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from jaxtyping import Float, Float32, Int, Int32

from realm_jax.corpus.store import Corpus
from realm_jax.generations.manifest import (
  DamagedGenerationError,
  EmbeddingsShard,
  GenerationError,
  Manifest,
)
from realm_jax.indexes.protocol import Blocks
from realm_jax.models.parameters import Params
from realm_jax.storage.staging import StagedFiles

# File of the parameters that embed queries for the vectors.
QUERY_TOWER = "query_tower/parameters.safetensors"


class Embeddings:
  """The vectors of a generation, memory-mapped file by file on first access.

  The `shards` are in row order, and the `dtype` is that of the stored vectors,
  `float32` or `bfloat16`. Every access verifies, or copies, the files that it
  needs, and raises a GenerationError if one differs from the manifest.
  """

  def __init__(
    self,
    files: StagedFiles,
    shards: Sequence[EmbeddingsShard],
    *,
    dim: int,
    dtype: str,
  ):
    *starts, num_blocks = np.cumsum([0, *(shard.rows for shard in shards)])
    self.shape = (int(num_blocks), dim)
    self.dtype = np.dtype(dtype)
    self._files, self._shards = files, shards
    self._starts = np.array(starts)
    self._maps: dict[str, np.ndarray] = {}

  @classmethod
  def of(cls, files: StagedFiles, manifest: Manifest) -> "Embeddings":
    """Opens those of a published generation."""
    return cls(
      files, manifest.embeddings, dim=manifest.dim, dtype=manifest.dtype
    )

  def paths(self) -> list[str]:
    """Returns the paths of all files."""
    paths = [shard.path for shard in self._shards]
    return paths + [s.steps_path for s in self._shards if s.steps_path]

  def map_all(self) -> None:
    """Maps all files now. What is mapped stays, even if its file is removed.

    Raises:
      GenerationError: A file differs from what the manifest says.
    """
    for shard in self._shards:
      self._vectors(shard)
      self._steps(shard)

  def verify_again(self) -> None:
    """Verifies local files again, whose bytes may have changed since.

    Raises:
      GenerationError: A file differs from what the manifest says.
    """
    self._files.get(self.paths(), again=True)

  def __getitem__(self, rows: slice) -> Float[np.ndarray, "n d"]:
    """Returns consecutive rows, without a copy if one file holds them."""
    start, stop, stride = rows.indices(self.shape[0])
    if stride != 1:
      raise IndexError(f"stride {stride}; want consecutive rows")
    parts = [
      self._vectors(shard)[max(0, start - first) : max(0, stop - first)]
      for first, shard in zip(self._starts, self._shards, strict=True)
      if start < first + shard.rows and stop > first
    ]
    if not parts:
      return np.zeros((0, self.shape[1]), self.dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def gather(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """Returns the vectors of any rows.

    Raises:
      IndexError: A row is not in 0 … N − 1; the null block has no vector.
    """
    rows = np.asarray(rows)
    if rows.size and (rows.min() < 0 or rows.max() >= self.shape[0]):
      raise IndexError(
        f"rows {rows.min()} … {rows.max()} of a generation of {self.shape[0]} "
        "blocks; the null block is not stored"
      )
    gathered = np.empty((*rows.shape, self.shape[1]), np.float32)
    self._gather_into(gathered, self._vectors, rows)
    return gathered

  def steps(self, rows: Int[np.ndarray, " n"]) -> Int32[np.ndarray, " n"]:
    """Returns the checkpoint steps that rows were embedded with."""
    steps = np.empty(len(rows), np.int32)
    self._gather_into(steps, self._steps, rows)
    return steps

  def _gather_into(
    self,
    target: np.ndarray,
    values_of: Callable[[EmbeddingsShard], np.ndarray],
    rows: np.ndarray,
  ) -> None:
    places = np.searchsorted(self._starts, rows, side="right") - 1
    for place in np.unique(places).tolist():
      here = places == place
      values = values_of(self._shards[place])
      target[here] = values[rows[here] - self._starts[place]]

  def _vectors(self, shard: EmbeddingsShard) -> np.ndarray:
    return self._mapped(shard.path, (shard.rows, self.shape[1]), self.dtype)

  def _steps(self, shard: EmbeddingsShard) -> np.ndarray:
    if not shard.steps_path:
      return np.broadcast_to(np.int32(shard.oldest_step), shard.rows)
    return self._mapped(shard.steps_path, (shard.rows,), np.dtype(np.int32))

  def _mapped(
    self, path: str, shape: tuple[int, ...], dtype: np.dtype
  ) -> np.ndarray:
    if path in self._maps:
      return self._maps[path]
    file = self._files.get([path]) / path
    try:
      mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
      raise DamagedGenerationError(f"{file} is no array: {error}") from error
    if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
      # The file format has no name for bfloat16 and returns plain bytes.
      mapped = mapped.view(dtype)
    if mapped.shape != shape or mapped.dtype != dtype:
      raise GenerationError(
        f"{file} holds {mapped.dtype}{list(mapped.shape)} and its manifest "
        f"says {dtype}{list(shape)}"
      )
    self._maps[path] = mapped
    return mapped


def check_finite(
  vectors: Float[np.ndarray, "n d"], rows: Int[np.ndarray, " n"]
) -> None:
  """Raises a GenerationError if the vector of a row is not finite."""
  finite = np.isfinite(vectors).all(axis=1)
  if not finite.all():
    raise GenerationError(
      f"the vector of block {int(rows[~finite][0])} is not finite; the "
      "checkpoint is broken"
    )


def index_blocks(corpus: Corpus, embeddings: Embeddings) -> Blocks:
  """Returns what an index is built over: a corpus and its vectors."""
  return Blocks(
    num_blocks=corpus.num_blocks,
    vectors=embeddings,
    token_ids=lambda row: corpus.block(row).token_ids,
    vocab_size=corpus.vocab_size,
  )


def save_query_tower(directory: Path, params: Params) -> None:
  """Writes the arrays by their path in the tree; the format holds no code."""
  flat = traverse_util.flatten_dict(params, sep="/")
  path = directory / QUERY_TOWER
  path.parent.mkdir()
  # `save_file` does not report a full disk as an `OSError`.
  path.write_bytes(
    safetensors.numpy.save(
      {name: np.asarray(array, order="C") for name, array in flat.items()}
    )
  )


def load_query_tower(directory: Path) -> Params:
  """Reads the tree that `save_query_tower` wrote, as numpy arrays.

  Raises:
    DamagedGenerationError: The file is missing or damaged.
  """
  path = directory / QUERY_TOWER
  try:
    flat = safetensors.numpy.load_file(path)
  except (OSError, safetensors.SafetensorError) as error:
    raise DamagedGenerationError(f"{path} cannot be read: {error}") from error
  return traverse_util.unflatten_dict(flat, sep="/")
