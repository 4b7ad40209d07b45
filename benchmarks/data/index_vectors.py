"""Vectors for the benchmark of indexes, and their true neighbours.

Every synthetic vector or query is one of 4,096 Gaussian centres plus 0.7 times
Gaussian noise. With a trained model, its vectors are resampled, with noise of a
tenth of their spread. Files are written once and reused.
"""

import dataclasses
import functools
import hashlib
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32

_CENTRES = 4096
_NOISE = 0.7
_DIM = 128
_NOISE_OF_TRAINED = np.float32(0.1)
_ROWS_PER_CHUNK = 1 << 16
# Number of tuning queries that an index builder has.
_NUM_TUNING = 256
# Streams of random numbers: each is combined with the seed.
_OF_CENTRES, _OF_VECTORS, _OF_QUERIES, _OF_TUNING = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class SyntheticVectors:
  """Vectors and queries that are determined by their sizes and a seed.

  Attributes:
    directory: Folder of the files.
    num_blocks: Number of blocks N.
    base: File of a trained model's block vectors, .npy [m, d], to resample;
      None uses the Gaussian centres.
    num_queries: Number of queries with known neighbours.
    k: Number of neighbours.
    seed: Seed of all random numbers.
  """

  directory: Path
  num_blocks: int
  base: Path | None = None
  num_queries: int = 512
  k: int = 8
  seed: int = 0

  @property
  def path(self) -> Path:
    """File of the vectors, float32 [N, d]."""
    return self.directory / f"vectors-{self._name()}.npy"

  @property
  def dim(self) -> int:
    """Dimension of vectors and queries."""
    return _DIM if self.base is None else self._read(self.base).shape[1]

  def _name(self) -> str:
    """Returns a name that identifies the base, sizes and seed."""
    of_base = ""
    if self.base is not None:
      digest = _digest(self.base, self.base.stat().st_mtime_ns)
      of_base = f"{self.base.stem}-{digest}-"
    return f"{of_base}{self.num_blocks}x{self.dim}-seed{self.seed}"

  def _read(self, path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)

  def vectors(self) -> np.memmap:
    """Maps the vectors [N, d] from their file, which is written if absent."""
    if not self.path.exists():
      self.directory.mkdir(parents=True, exist_ok=True)
      # The file gets its name when it is complete.
      unfinished = self.path.with_suffix(".unfinished")
      self._write(unfinished)
      os.replace(unfinished, self.path)
    return np.load(self.path, mmap_mode="r", allow_pickle=False)

  def queries(self) -> Float32[np.ndarray, "b d"]:
    """Returns the queries, which are drawn like the vectors."""
    return self._draw(self.num_queries, _OF_QUERIES)

  def tuning_queries(self) -> Float32[np.ndarray, "b d"]:
    """Returns other queries of the same kind, for tuning an index."""
    return self._draw(_NUM_TUNING, _OF_TUNING)

  def truth(self) -> Int32[np.ndarray, "b k"]:
    """Returns the k best blocks of each query, and caches them in a file."""
    name = f"{self._name()}-{self.num_queries}x{self.k}"
    path = self.directory / f"truth-{name}.npy"
    if not path.exists():
      found = true_neighbours(self.vectors(), self.queries(), self.k)
      unfinished = path.with_suffix(".unfinished.npy")
      np.save(unfinished, found)
      os.replace(unfinished, path)
    return np.load(path, allow_pickle=False)

  def _write(self, path: Path) -> None:
    vectors = np.lib.format.open_memmap(
      path, mode="w+", dtype=np.float32, shape=(self.num_blocks, self.dim)
    )
    for start in range(0, self.num_blocks, _ROWS_PER_CHUNK):
      part = vectors[start : start + _ROWS_PER_CHUNK]
      part[:] = self._draw(len(part), _OF_VECTORS, start)
    vectors.flush()

  def _draw(self, count: int, *stream: int) -> Float32[np.ndarray, "n d"]:
    base, noise = self._base_and_noise()
    rng = np.random.default_rng((self.seed, *stream))
    drawn = rng.standard_normal((count, base.shape[1]), np.float32)
    drawn *= noise
    drawn += base[rng.integers(len(base), size=count)]
    return drawn

  def _base_and_noise(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors to resample, and the spread of the noise."""
    if self.base is not None:
      base = np.asarray(self._read(self.base), np.float32)
      return base, _NOISE_OF_TRAINED * base.std(axis=0)
    rng = np.random.default_rng((self.seed, _OF_CENTRES))
    centres = rng.standard_normal((_CENTRES, _DIM), np.float32)
    return centres, np.full(_DIM, _NOISE, np.float32)


@functools.cache
def _digest(path: Path, changed: int) -> str:
  """Hashes a file; `changed`, its time of change, is a key of the cache."""
  del changed
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()[:8]


def true_neighbours(
  vectors: Float32[np.ndarray, "n d"],
  queries: Float32[np.ndarray, "b d"],
  k: int,
) -> Int32[np.ndarray, "b k"]:
  """Finds the k best blocks exactly, one chunk of the vectors at a time.

  They come best first; ties go to the lower row.
  """
  best_scores = np.full((len(queries), k), -np.inf, np.float32)
  best_rows = np.full((len(queries), k), -1, np.int32)
  for start in range(0, len(vectors), _ROWS_PER_CHUNK):
    scores = queries @ vectors[start : start + _ROWS_PER_CHUNK].T
    worst = best_scores[:, -1]
    for query in np.flatnonzero(scores.max(axis=1) > worst):
      here = np.flatnonzero(scores[query] > worst[query])
      # Earlier results come first, because their rows are lower.
      both = np.concatenate([best_scores[query], scores[query, here]])
      rows = np.concatenate([best_rows[query], start + here])
      order = np.argsort(-both, kind="stable")[:k]
      best_scores[query], best_rows[query] = both[order], rows[order]
  return best_rows


def recall(
  found: Int32[np.ndarray, "b k"], true: Int32[np.ndarray, "b k"]
) -> float:
  """Returns the share of the true neighbours that were found."""
  hits = (found[:, :, None] == true[:, None, :]).any(axis=1)
  return float(hits.mean())
