"""A ScaNN searcher behind the `Index` protocol, and the library itself."""

import errno
import functools
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Integer

from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexLoadError,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
  library_of,
)

_TREE = "tree.json"
_Found = tuple[Integer[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]


class Tree(NamedTuple):
  """The leaves of a tree, and how much of it a search uses.

  A query searches `leaves_searched` leaves, and the `num_reordered` best by
  code are scored again.
  """

  num_leaves: int
  leaves_searched: int
  num_reordered: int

  def write(self, directory: Path) -> None:
    """Writes what ScaNN's own files do not store."""
    (directory / _TREE).write_text(json.dumps(self._asdict()) + "\n")

  @classmethod
  def read(cls, directory: Path) -> "Tree | None":
    """Reads what `write` wrote; returns None if there is no tree.

    Raises:
      IndexLoadError: The file cannot be read.
    """
    path = directory / _TREE
    try:
      return cls(**json.loads(path.read_text()))
    except FileNotFoundError:
      return None
    except (OSError, ValueError, TypeError) as error:
      raise IndexLoadError(
        f"{path} cannot be read ({error!r}); build the index again"
      ) from error


class ScannIndex(Index):
  """A ScaNN searcher over files; `ScannConfig` builds and loads it.

  Without a tree, every block is scored. Searches use every core.

  Raises:
    IndexLoadError: ScaNN cannot read the files.
  """

  kind = "scann"
  needs_vectors = True

  def __init__(self, directory: Path, blocks: Blocks, *, tree: Tree | None):
    self.num_blocks, self.dim = blocks.embedded().shape
    self._loaded = _load_searcher(directory)
    self.tree = tree
    self._threads = os.cpu_count() or 1

  @functools.cached_property
  def _searcher(self) -> Any:
    """The searcher, with threads that search at the caller's priority.

    Its first threads have the priority of the thread that loaded it, which may
    be low. These get the priority of the thread that searches first, which
    itself does a share of the work.
    """
    if self._threads > 1:
      self._loaded.set_num_threads(self._threads - 1)
    return self._loaded

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns k blocks for each query, approximately the best."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    if self.tree is None:
      return in_order(*self._search_batched(vectors, k))
    leaves = self.tree.num_leaves
    # Twice as many leaves as hold k blocks on average: they may be uneven.
    searched = max(
      self.tree.leaves_searched, -(-2 * k * leaves // self.num_blocks)
    )
    rows, scores = self._search_batched(
      vectors,
      k,
      leaves_to_search=min(searched, leaves),
      pre_reorder_num_neighbors=min(
        max(self.tree.num_reordered, k), self.num_blocks
      ),
    )
    # Where the leaves hold fewer than k blocks, ScaNN returns NaN.
    short = np.isnan(scores).any(axis=1)
    if short.any():
      rows, scores = rows.copy(), scores.copy()
      rows[short], scores[short] = self._search_batched(
        vectors[short],
        k,
        leaves_to_search=leaves,
        pre_reorder_num_neighbors=self.num_blocks,
      )
    return in_order(rows, scores)

  def _search_batched(
    self, vectors: Float32[np.ndarray, "b d"], k: int, **settings: int
  ) -> _Found:
    if self._threads == 1:
      # ScaNN's parallel search crashes without a second thread.
      return self._loaded.search_batched(vectors, k, **settings)
    # Half of a small batch goes to each of two cores, not all of it to one.
    size = max(1, min(256, len(vectors) // 2))
    return self._searcher.search_batched_parallel(
      vectors, k, batch_size=size, **settings
    )


def _load_searcher(directory: Path) -> Any:
  """Loads ScaNN's searcher over the files of a directory.

  Raises:
    IndexLoadError: ScaNN cannot read it, or would unpickle something.
  """
  if (directory / "scann_docids.pkl").exists():
    raise IndexLoadError(f"{directory} holds a pickle, which is never read")
  scann = library()
  try:
    return scann.load_searcher(str(directory), assets_backcompat_shim=False)
  except (RuntimeError, ValueError, OSError) as error:
    version = importlib.metadata.version("scann")
    raise IndexLoadError(
      f"scann {version} cannot read {directory}: {error}; build it again, with "
      "the version that is installed here"
    ) from error


def write_searcher(builder: Any, directory: Path) -> None:
  """Builds a searcher, and writes its files to an empty or new directory.

  Raises:
    ValueError: ScaNN cannot build it.
    OSError: The disk is full.
  """
  try:
    searcher = builder.build()
  except RuntimeError as error:
    raise ValueError(f"ScaNN cannot build the index: {error}") from error
  directory.mkdir(parents=True, exist_ok=True)
  try:
    searcher.serialize(str(directory), relative_path=True)
  except RuntimeError as error:
    # ScaNN's error does not say that the disk is full.
    raise OSError(
      errno.ENOSPC, f"cannot write ScaNN's files: {error}", str(directory)
    ) from error


def library() -> Any:
  """Returns ScaNN's Python module.

  Its operations for TensorFlow are not used. Without TensorFlow, which is
  hidden here unless it was imported earlier, the import takes a twentieth of
  the time.

  Raises:
    LibraryError: It is not installed.
  """
  module, advice = "scann.scann_ops.py.scann_ops_pybind", "`pip install scann`"
  modules: dict[str, Any] = sys.modules
  is_new = module not in modules
  hides = is_new and modules.setdefault("tensorflow", None) is None
  try:
    return library_of("scann", module, f"{advice}, or choose the index `exact`")
  finally:
    if hides:
      del modules["tensorflow"]
