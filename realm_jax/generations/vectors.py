"""The vectors of a generation, memory-mapped, and its query tower."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
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
from realm_jax.storage.arrays import save_array
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.staging import FileRecord, StagedFiles, sha256_of

# File of the parameters that embed queries for the vectors.
QUERY_TOWER = "query_tower/parameters.safetensors"
DTYPES = {
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# A file's vectors are in memory while they are embedded.
_MAX_SHARD_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class ShardLayout:
  """The division of vectors into files of consecutive rows.

  Each file but the last has `rows_per_shard` rows. The `dtype` is that of the
  stored vectors, `float32` or `bfloat16`.
  """

  num_blocks: int
  dim: int
  dtype: str
  rows_per_shard: int

  @classmethod
  def of(
    cls, num_blocks: int, dim: int, *, dtype: str, max_rows: int
  ) -> "ShardLayout":
    """Divides into files of about the same size, of at most `max_rows`.

    Raises:
      ValueError: The dtype is unknown, or `max_rows` is below 1.
    """
    if dtype not in DTYPES:
      raise ValueError(f"dtype={dtype!r}; want one of {', '.join(DTYPES)}")
    if max_rows < 1:
      raise ValueError(f"shard_blocks={max_rows}; want at least 1 per file")
    row_bytes = dim * DTYPES[dtype].itemsize
    max_rows = max(1, min(max_rows, _MAX_SHARD_BYTES // row_bytes))
    count = max(1, -(-num_blocks // max_rows))
    return cls(num_blocks, dim, dtype, max(1, -(-num_blocks // count)))

  def __len__(self) -> int:
    return max(1, -(-self.num_blocks // self.rows_per_shard))

  def rows(self, shard: int) -> Int[np.ndarray, " n"]:
    """Returns the rows of a file."""
    start = shard * self.rows_per_shard
    stop = min(start + self.rows_per_shard, self.num_blocks)
    return np.arange(start, stop)

  def name(self, shard: int) -> str:
    """Returns the name of a file of vectors."""
    return f"embeddings-{shard:05d}-of-{len(self):05d}.npy"


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


def write_shard(
  directory: epath.PathLike,
  layout: ShardLayout,
  shard: int,
  vectors: Float[np.ndarray, "n d"],
  steps: Int[np.ndarray, " n"],
) -> tuple[EmbeddingsShard, tuple[FileRecord, ...]]:
  """Writes the vectors of one shard, and the steps they were embedded with.

  The directory is local or on an object store. Returns the records of the
  shard and of its files, each of which appears whole.

  Raises:
    GenerationError: A vector is not finite.
    OSError: The disk is full.
  """
  check_finite(vectors, layout.rows(shard))
  arrays = {layout.name(shard): vectors.astype(DTYPES[layout.dtype])}
  oldest, newest = int(steps.min()), int(steps.max())
  steps_path = ""
  if oldest != newest:
    steps_path = layout.name(shard).replace("embeddings", "steps")
    arrays[steps_path] = steps.astype(np.int32)
  files = []
  for name, array in arrays.items():
    with atomic_file(epath.Path(directory) / name) as path:
      save_array(path, array)
      size = path.stat().st_size
      files.append(FileRecord(name, size, sha256_of(path)))
  record = EmbeddingsShard(
    layout.name(shard), len(vectors), oldest, newest, steps_path
  )
  return record, tuple(files)


class Embeddings:
  """The vectors of a generation, memory-mapped shard by shard on first access.

  Args:
    files: Files of the generation, which verify and copy each when it is asked
      for; or a local directory with files that are taken as they are.
    shards: Shards of the generation, in row order.
    dim: Dimension of the vectors.
    dtype: Type of the stored vectors, one of `DTYPES`.

  Every access raises a GenerationError if a file differs from the manifest.
  """

  def __init__(
    self,
    files: StagedFiles | Path,
    shards: Sequence[EmbeddingsShard],
    *,
    dim: int,
    dtype: str,
  ):
    rows = [shard.rows for shard in shards]
    self.shape = (sum(rows), dim)
    self.dtype = DTYPES[dtype]
    self._files = files
    self._shards = shards
    self._starts = np.cumsum([0, *rows])[:-1]
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
    for shard in range(len(self._shards)):
      self._vectors(shard)
      self._steps(shard)

  def verify_again(self) -> None:
    """Verifies local files again, whose bytes may have changed since.

    Raises:
      GenerationError: A file differs from what the manifest says.
    """
    if isinstance(self._files, StagedFiles):
      self._files.get(self.paths(), again=True)

  def _vectors(self, shard: int) -> np.ndarray:
    record = self._shards[shard]
    shape = (record.rows, self.shape[1])
    return self._mapped(record.path, shape, self.dtype)

  def _steps(self, shard: int) -> np.ndarray:
    record = self._shards[shard]
    if not record.steps_path:
      return np.broadcast_to(np.int32(record.oldest_step), record.rows)
    return self._mapped(record.steps_path, (record.rows,), np.dtype(np.int32))

  def _mapped(
    self, path: str, shape: tuple[int, ...], dtype: np.dtype
  ) -> np.ndarray:
    mapped = self._maps.get(path)
    if mapped is None:
      files = self._files
      root = files if isinstance(files, Path) else files.get([path])
      mapped = self._maps[path] = _map(root / path, shape, dtype)
    return mapped

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: slice) -> Float[np.ndarray, "n d"]:
    """Returns consecutive rows, without a copy if one file holds them."""
    start, stop, stride = rows.indices(len(self))
    if stride != 1:
      raise IndexError(f"stride {stride}; want consecutive rows")
    parts = [
      self._vectors(i)[max(0, start - first) : max(0, stop - first)]
      for i, (first, shard) in enumerate(
        zip(self._starts, self._shards, strict=True)
      )
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
    flat = rows.reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= len(self)):
      raise IndexError(
        f"rows {flat.min()} … {flat.max()} of a generation of {len(self)} "
        "blocks; the null block is not stored"
      )
    gathered = np.empty((flat.size, self.shape[1]), np.float32)
    self._gather_into(gathered, self._vectors, flat)
    return gathered.reshape(*rows.shape, self.shape[1])

  def steps(self, rows: Int[np.ndarray, " n"]) -> Int32[np.ndarray, " n"]:
    """Returns the checkpoint steps that rows were embedded with."""
    steps = np.empty(len(rows), np.int32)
    self._gather_into(steps, self._steps, rows)
    return steps

  def _gather_into(
    self,
    target: np.ndarray,
    values_of: Callable[[int], np.ndarray],
    rows: np.ndarray,
  ) -> None:
    shards = np.searchsorted(self._starts, rows, side="right") - 1
    for shard in np.unique(shards).tolist():
      here = shards == shard
      target[here] = values_of(shard)[rows[here] - self._starts[shard]]


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


def _map(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  try:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
  except (ValueError, EOFError, OSError) as error:
    raise DamagedGenerationError(f"{path} is not an array: {error}") from error
  if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
    # The file format has no name for bfloat16 and returns plain bytes.
    mapped = mapped.view(dtype)
  if mapped.shape != shape or mapped.dtype != dtype:
    raise GenerationError(
      f"{path} holds {mapped.dtype}{list(mapped.shape)} and its manifest says "
      f"{dtype}{list(shape)}"
    )
  return mapped
