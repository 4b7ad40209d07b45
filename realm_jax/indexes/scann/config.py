"""The settings of a ScaNN index, and how it is built by them.

A point of a tree is a number of leaves to search and a number of vectors to
score again. The fastest measured point that meets the recall target is chosen.
"""

import bisect
import dataclasses
import functools
import importlib.metadata
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from absl import logging
from jax.sharding import Mesh
from jaxtyping import Float32

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import (
  DEFAULT_OPTIONS,
  Blocks,
  BuildOptions,
  IndexConfig,
  QueryBatch,
  RecallError,
  Rows,
  sample_vectors,
)
from realm_jax.indexes.scann import trees
from realm_jax.indexes.scann.index import (
  ScannIndex,
  Tree,
  library,
  write_searcher,
)
from realm_jax.indexes.scann.training import train
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFraction,
  PositiveInt,
)

# Vectors of blocks that replace queries where there are none.
_NUM_STAND_INS = 256
# Smallest training sample, in all and per leaf.
_TRAINING_SAMPLE = 1 << 17
_SAMPLED_PER_LEAF = 32
# ScaNN's documentation recommends this threshold.
_ANISOTROPIC_THRESHOLD = 0.2
# Searches with which a point is measured.
_REPEATS = 5
_LEAVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REORDERED = (16, 32, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)


@dataclasses.dataclass(frozen=True)
class ScannConfig(IndexConfig):
  """Builds and loads trees of leaves, with quantized scores and reordering.

  How much of the tree is searched is chosen for each generation by measuring,
  where it is not given. The choice depends on measured times, so a run that
  must repeat bit for bit from its checkpoints alone gives both numbers.

  Attributes:
    recall_target: Share of the `recall_k` best blocks to find. Choices aim a
      tenth of the rest higher, for queries other than the measured ones; what
      is published has to meet the target itself.
    recall_k: k of that recall.
    below_target: Whether an index below the target is accepted.
    builder: Builder of the tree, `own` or `stock`, which is ScaNN's public one.
      That needs all vectors in memory, in float32; it is taken, too, where
      another version of ScaNN is installed than the one whose formats are known
      here.
    brute_force_below: Number of blocks below which all are searched, which is
      faster for so few.
    num_leaves: Number of partitions of the vectors; None is `default_leaves`.
    num_leaves_searched: Number of leaves that a query searches; None measures.
    num_reordered: Number of the best by code that are scored again, at least
      k; None measures.
    reordering: Type of the vectors that are scored again, `float32` or
      `bfloat16`.
    dims_per_code: Dimensions that share one 4-bit code.
  """

  kind: ClassVar[str] = "scann"
  may_crash: ClassVar[bool] = True
  recall_target: PositiveFraction = 0.95
  recall_k: PositiveInt = 8
  below_target: bool = False
  builder: Literal["own", "stock"] = "own"
  brute_force_below: NonNegativeInt = 10_000
  num_leaves: PositiveInt | None = None
  num_leaves_searched: PositiveInt | None = None
  num_reordered: PositiveInt | None = None
  reordering: Literal["float32", "bfloat16"] = "bfloat16"
  dims_per_code: PositiveInt = 2

  def build(
    self, blocks: Blocks, options: BuildOptions = DEFAULT_OPTIONS
  ) -> ScannIndex:
    """Builds the tree, and chooses how much of it meets the target fastest.

    Without queries, recall is measured with vectors of blocks as queries.
    Without a directory, the files are removed once they are loaded. Our own
    builder runs on jax's default device.

    Raises:
      RecallError: The target is not met, and `below_target` is off.
      ValueError: ScaNN cannot build such a tree over these vectors.
      LibraryError: ScaNN is not installed.
      OSError: The disk is full.
    """
    directory, vectors = options.directory, blocks.embedded()
    if directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        directory = Path(scratch) / self.kind
        kept = dataclasses.replace(options, directory=directory)
        return self.build(blocks, kept)
    if blocks.num_blocks < self.brute_force_below:
      builder = library().builder(_in_memory(vectors), 10, "dot_product")
      write_searcher(builder.score_brute_force(), directory)
      return self.load(directory, blocks)
    num_leaves = self.num_leaves or default_leaves(blocks.num_blocks)
    self._write(directory, vectors, num_leaves, options.check)
    k = min(self.recall_k, blocks.num_blocks)
    index = ScannIndex(directory, blocks, tree=Tree(num_leaves, 1, k))
    queries = options.queries
    if queries is None or queries.vectors is None:
      queries = QueryBatch.of_vectors(
        sample_vectors(vectors, _NUM_STAND_INS, seed=1)
      )
    options.check()
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
      "num_leaves": num_leaves,
      **point._asdict(),
    }
    index.tree = Tree(num_leaves, point.leaves_searched, point.num_reordered)
    index.tree.write(directory)
    return index

  def load(
    self, directory: Path, blocks: Blocks, *, mesh: Mesh | None = None
  ) -> ScannIndex:
    """Loads what `build` wrote."""
    del mesh
    return ScannIndex(directory, blocks, tree=Tree.read(directory))

  def _write(
    self,
    directory: Path,
    vectors: Rows,
    num_leaves: int,
    check: Callable[[], None],
  ) -> None:
    """Trains a tree and writes it; each search sets how much it searches."""
    scann, installed = library(), importlib.metadata.version("scann")
    is_own = self.builder == "own" and installed == trees.FORMATS_VERSION
    if self.builder == "own" and not is_own:
      logging.warning(
        "scann %s is installed, and our builder writes the formats of %s: "
        "ScaNN's own builds the index, which needs all vectors in memory",
        *(installed, trees.FORMATS_VERSION),
      )
    # Our builder takes nothing but the configuration from ScaNN's.
    dim = vectors.shape[1]
    own = np.zeros((1, dim), np.float32) if is_own else _in_memory(vectors)
    builder = scann.builder(own, 10, "dot_product")
    # k-means++ from ScaNN's fixed seed repeats a build, and a random start
    # does not.
    builder.tree(num_leaves, num_leaves_to_search=1, random_init=False)
    codes: dict[str, Any] = {}
    if not is_own:
      codes["anisotropic_quantization_threshold"] = _ANISOTROPIC_THRESHOLD
    builder.score_ah(self.dims_per_code, **codes)
    kinds = scann.scann_builder.ReorderType
    builder.reorder(1, quantize=kinds[self.reordering.upper()])
    check()
    if not is_own:
      write_searcher(builder, directory)
      return
    size = max(_TRAINING_SAMPLE, _SAMPLED_PER_LEAF * num_leaves)
    sample = sample_vectors(vectors, size)
    trees.write(
      directory,
      vectors,
      train(sample, num_leaves, self.dims_per_code),
      builder.create_config(),
      reordering=self.reordering,
      check=check,
    )


def default_leaves(num_blocks: int) -> int:
  """Returns about twice the square root of the blocks, a power of two.

  Of half, once, twice and four times as many, trials chose this number for the
  vectors of both trained models of benchmarks/README.md.
  """
  return 2 ** (1 + round(math.log2(max(1, num_blocks)) / 2))


def _in_memory(vectors: Rows) -> Float32[np.ndarray, "n d"]:
  return np.ascontiguousarray(vectors[0 : vectors.shape[0]], np.float32)


class Point(NamedTuple):
  """How much of a tree a search uses, as in `Tree`, and how well.

  The recall is at the k of the ground truth. The rate is that of all queries in
  one batch, the best of a few repetitions.
  """

  leaves_searched: int
  num_reordered: int
  recall: float
  queries_per_second: float


def fastest_point(
  index: ScannIndex,
  truth: GroundTruth,
  *,
  target: float,
  leaves_searched: int | None = None,
  num_reordered: int | None = None,
) -> Point:
  """Returns the fastest point that meets the target.

  If none meets it, the point of the best recall is returned. For each number
  of reordered vectors, a bisection finds the fewest leaves that meet it. A
  number that is given is kept.
  """
  assert index.tree is not None
  num_leaves = index.tree.num_leaves
  points: list[Point] = []

  def meets(searched: int, again: int) -> bool:
    index.tree = Tree(num_leaves, searched, again)
    seconds: list[float] = []
    recall = 0.0
    # The speed of a point below the target does not matter.
    while not seconds or (recall >= target and len(seconds) < _REPEATS):
      start = time.perf_counter()
      found = index.search(truth.queries, truth.k)
      seconds.append(time.perf_counter() - start)
      recall = truth.recall(found)
    rate = len(truth.queries.token_ids) / min(seconds)
    points.append(Point(searched, again, recall, rate))
    return recall >= target

  def tried(
    given: int | None, low: int, high: int, grid: Sequence[int]
  ) -> list[int]:
    values = grid if given is None else [given]
    return sorted({max(low, min(value, high)) for value in values})

  leaves = tried(leaves_searched, 1, num_leaves, _LEAVES)
  for again in tried(num_reordered, truth.k, index.num_blocks, _REORDERED):
    bisect.bisect_left(leaves, True, key=functools.partial(meets, again=again))
  best = max(point.recall for point in points)
  good = [point for point in points if point.recall >= min(target, best)]
  return max(good, key=lambda point: point.queries_per_second)
