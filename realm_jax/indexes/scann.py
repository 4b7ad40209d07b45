"""Approximate search with ScaNN (Guo et al. 2020, arXiv 1908.10396).

A query searches some leaves of a tree and scores the vectors there by 4-bit
codes. The best by code are scored again with the vectors themselves. A build
measures both numbers, and chooses the fastest that meet the recall target.
"""

import bisect
import dataclasses
import errno
import functools
import importlib.metadata
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Integer

from realm_jax.errors import RealmError
from realm_jax.indexes.exact import GroundTruth
from realm_jax.indexes.protocol import (
  Blocks,
  IndexConfig,
  IndexLoadError,
  QueryBatch,
  RecallError,
  Tree,
  TreeIndex,
  library_of,
  sample_vectors,
)
from realm_jax.settings import NonNegativeInt, PositiveFraction, PositiveInt

# Number of block vectors that serve as queries if no queries are given.
_NUM_STAND_INS = 256
_TREE = "tree.json"
# Smallest training sample, in total and per leaf.
_SAMPLE = 100_000
_SAMPLED_PER_LEAF = 32
# ScaNN's documentation recommends this threshold.
_ANISOTROPIC_THRESHOLD = 0.2
# Number of searches with which a point is measured.
_REPEATS = 5
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REORDERED = (16, 32, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)


class Point(NamedTuple):
  """A setting of the search in a tree, with its recall and speed.

  `recall` is at the k of the ground truth. `queries_per_second` is for all
  queries in one batch, the best of a few repetitions.
  """

  tree: Tree
  recall: float
  queries_per_second: float


@dataclasses.dataclass(frozen=True)
class ScannConfig(IndexConfig):
  """Builds and loads trees of leaves, with quantized scores and reordering.

  Unless `num_leaves_searched` and `num_reordered` are set, each build chooses
  them by measuring. The choice depends on timings, so set both for a run that
  must be reproducible bit for bit from its checkpoints.

  Attributes:
    recall_target: Share of the `recall_k` best blocks to find. The choice aims
      higher by a tenth of the remainder, because recall is lower on queries
      that were not measured; a published index must meet the target itself.
    recall_k: k of the recall target.
    below_target: Whether an index below the target is accepted.
    brute_force_below: Number of blocks below which all blocks are searched,
      because that is faster.
    num_leaves: Number of partitions of the vectors; None is `default_leaves`.
    num_leaves_searched: Number of leaves that a query searches; None measures.
    num_reordered: Number of best blocks by code that are scored again, at least
      k; None measures.
    reordering: Type of the vectors that are scored again, `float32` or
      `bfloat16`.
    dims_per_code: Dimensions that share one 4-bit code.
  """

  kind: ClassVar[str] = "scann"
  recall_target: PositiveFraction = 0.95
  recall_k: PositiveInt = 8
  below_target: bool = False
  brute_force_below: NonNegativeInt = 10_000
  num_leaves: PositiveInt | None = None
  num_leaves_searched: PositiveInt | None = None
  num_reordered: PositiveInt | None = None
  reordering: Literal["float32", "bfloat16"] = "bfloat16"
  dims_per_code: PositiveInt = 2

  @property
  def needs_separate_process(self) -> bool:
    """ScaNN holds the interpreter's lock while it loads."""
    return True

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "ScannIndex":
    """Builds the tree, and chooses the fastest search that meets the target.

    ScaNN's builder has all vectors in memory, in float32. Without queries,
    recall is measured with vectors of blocks as queries. Without a directory,
    the files are removed once they are loaded.
    """
    vectors = blocks.embedded()
    if directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        return self.build(blocks, Path(scratch) / self.kind)
    scann = _library()
    in_memory = np.ascontiguousarray(vectors[0 : blocks.num_blocks], np.float32)
    builder = scann.builder(in_memory, 10, "dot_product")
    blocks.check()
    if blocks.num_blocks < self.brute_force_below:
      _write_searcher(builder.score_brute_force(), directory)
      return self.load(directory, blocks)
    num_leaves = self.num_leaves or default_leaves(blocks.num_blocks)
    sample = max(_SAMPLE, _SAMPLED_PER_LEAF * num_leaves)
    sample = min(sample, blocks.num_blocks)
    builder.tree(
      num_leaves,
      num_leaves_to_search=1,  # Each search sets its own number.
      training_sample_size=sample,
      # Smaller leaves are dropped. ScaNN's default, 50 vectors of the sample,
      # drops nearly all leaves of a large tree; a quarter of the mean keeps
      # most.
      min_partition_size=max(1, sample // (4 * num_leaves)),
      # k-means++ with ScaNN's fixed seed is reproducible; a random start is
      # not.
      random_init=False,
    )
    builder.score_ah(
      self.dims_per_code,
      anisotropic_quantization_threshold=_ANISOTROPIC_THRESHOLD,
    )
    kinds = scann.scann_builder.ReorderType
    builder.reorder(1, quantize=kinds[self.reordering.upper()])
    _write_searcher(builder, directory)
    del builder, in_memory
    k = min(self.recall_k, blocks.num_blocks)
    index = ScannIndex(directory, blocks, tree=Tree(num_leaves, 1, k))
    queries = blocks.queries
    if queries is None or queries.vectors is None:
      queries = QueryBatch.of_vectors(
        sample_vectors(vectors, _NUM_STAND_INS, seed=1)
      )
    blocks.check()
    point = fastest_point(
      index,
      GroundTruth(vectors, queries, k),
      # Recall is a little lower for queries that the tree is not tuned on.
      target=self.recall_target + (1 - self.recall_target) / 10,
      leaves_searched=self.num_leaves_searched,
      num_reordered=self.num_reordered,
    )
    if point.recall < self.recall_target and not self.below_target:
      raise RecallError(
        f"the index reaches recall@{k} {point.recall:.3f} of "
        f"{self.recall_target}; search more (num_leaves_searched, "
        "num_reordered), change num_leaves, lower recall_target, or bind "
        "ScannConfig.below_target=True to publish it all the same"
      )
    index.report = {
      "recall_target": self.recall_target,
      "recall_k": k,
      **point.tree._asdict(),
      "recall": point.recall,
      "queries_per_second": point.queries_per_second,
    }
    index.tree = point.tree
    # ScaNN's own files do not store the tree's settings.
    (directory / _TREE).write_text(json.dumps(point.tree._asdict()) + "\n")
    return index

  def load(self, directory: Path, blocks: Blocks) -> "ScannIndex":
    """Loads the files of `build`."""
    tree, path = None, directory / _TREE
    try:
      if path.exists():
        tree = Tree(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
      raise IndexLoadError(
        f"{path} cannot be read ({error!r}); build the index again"
      ) from error
    return ScannIndex(directory, blocks, tree=tree)


def default_leaves(num_blocks: int) -> int:
  """Returns about twice the square root of the blocks, a power of two.

  Among ½, 1, 2 and 4 times this number, it is the fastest for the vectors of
  the demo's model in benchmarks/README.md.
  """
  return 2 ** (1 + round(math.log2(max(1, num_blocks)) / 2))


def fastest_point(
  index: "ScannIndex",
  truth: GroundTruth,
  *,
  target: float,
  leaves_searched: int | None = None,
  num_reordered: int | None = None,
) -> Point:
  """Returns the fastest point that meets the target.

  If none meets it, returns the point with the best recall. For each number of
  reordered vectors, a bisection finds the fewest leaves that meet the target.
  A number that is passed as an argument is kept.
  """
  assert index.tree is not None
  num_leaves = index.tree.num_leaves
  points: list[Point] = []

  def meets(searched: int, again: int) -> bool:
    index.tree = Tree(num_leaves, searched, again)
    seconds: list[float] = []
    recall = 0.0
    # Points below the target need no timing.
    while not seconds or (recall >= target and len(seconds) < _REPEATS):
      start = time.perf_counter()
      result = index.search(truth.queries, truth.k)
      seconds.append(time.perf_counter() - start)
      recall = truth.recall(result)
    rate = len(truth.queries.token_ids) / min(seconds)
    points.append(Point(index.tree, recall, rate))
    return recall >= target

  def tried(
    fixed: int | None, low: int, high: int, grid: Sequence[int]
  ) -> list[int]:
    values = grid if fixed is None else [fixed]
    return sorted({max(low, min(value, high)) for value in values})

  leaves = tried(leaves_searched, 1, num_leaves, _LEAVES)
  for again in tried(num_reordered, truth.k, index.num_blocks, _REORDERED):
    bisect.bisect_left(leaves, True, key=functools.partial(meets, again=again))
  best = max(point.recall for point in points)
  good = [point for point in points if point.recall >= min(target, best)]
  return max(good, key=lambda point: point.queries_per_second)


class ScannIndex(TreeIndex):
  """A ScaNN searcher over files; `ScannConfig` builds and loads it.

  Without a tree, every block is scored. Searches use every core.

  Raises:
    IndexLoadError: ScaNN cannot read the files, or they include a pickle.
  """

  kind = "scann"

  def __init__(self, directory: Path, blocks: Blocks, *, tree: Tree | None):
    self.num_blocks, self.dim = blocks.embedded().shape
    if (directory / "scann_docids.pkl").exists():
      raise IndexLoadError(f"{directory} holds a pickle, which is never read")
    scann = _library()
    try:
      self._loaded = scann.load_searcher(
        str(directory), assets_backcompat_shim=False
      )
    except (RuntimeError, ValueError, OSError) as error:
      version = importlib.metadata.version("scann")
      raise IndexLoadError(
        f"scann {version} cannot read {directory}: {error}; build it again, "
        "with the version that is installed here"
      ) from error
    self.tree = tree
    self._threads = os.cpu_count() or 1

  @functools.cached_property
  def _searcher(self) -> Any:
    """The searcher, with threads that search at the caller's priority.

    Its first threads have the priority of the thread that loaded it, which may
    be low. They are replaced here by threads with the priority of the first
    caller, which does a share of the work itself.
    """
    if self._threads > 1:
      self._loaded.set_num_threads(self._threads - 1)
    return self._loaded

  def _search(
    self, vectors: Float32[np.ndarray, "b d"], k: int, used: Tree
  ) -> tuple[Integer[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]:
    settings = {}
    if self.tree is not None:
      settings["leaves_to_search"] = used.leaves_searched
      settings["pre_reorder_num_neighbors"] = used.num_reordered
    if self._threads == 1:
      # ScaNN's parallel search crashes without a second thread.
      return self._loaded.search_batched(vectors, k, **settings)
    # Splits a small batch between two cores.
    size = max(1, min(256, len(vectors) // 2))
    return self._searcher.search_batched_parallel(
      vectors, k, batch_size=size, **settings
    )


def _write_searcher(builder: Any, directory: Path) -> None:
  """Builds a searcher, and writes its files to an empty or new directory."""
  try:
    searcher = builder.build()
  except RuntimeError as error:
    raise RealmError(f"ScaNN cannot build the index: {error}") from error
  directory.mkdir(parents=True, exist_ok=True)
  try:
    searcher.serialize(str(directory), relative_path=True)
  except RuntimeError as error:
    # ScaNN's error does not say that the disk is full.
    raise OSError(
      errno.ENOSPC, f"cannot write ScaNN's files: {error}", str(directory)
    ) from error


def _library() -> Any:
  """Returns ScaNN's Python module.

  Its operations for TensorFlow are not used. Without TensorFlow, which is
  hidden here unless it was imported earlier, the import takes a twentieth of
  the time.
  """
  module = "scann.scann_ops.py.scann_ops_pybind"
  advice = "`pip install 'realm_jax[train]'`, or choose the index `exact`"
  modules: dict[str, Any] = sys.modules
  is_new = module not in modules
  hides = is_new and modules.setdefault("tensorflow", None) is None
  try:
    return library_of("scann", module, advice)
  finally:
    if hides:
      del modules["tensorflow"]
