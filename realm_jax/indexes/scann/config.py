"""The settings of a ScaNN index, and how it is built by them."""

import dataclasses
import importlib.metadata
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from absl import logging
from jax.sharding import Mesh
from jaxtyping import Float32

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import (
  DEFAULT_OPTIONS,
  HOST_SETTING,
  Blocks,
  BuildOptions,
  IndexLoadError,
  QueryBatch,
  RecallError,
  Rows,
)
from realm_jax.indexes.scann import trees, tuning
from realm_jax.indexes.scann.index import (
  ScannIndex,
  Tree,
  library,
  write_searcher,
)
from realm_jax.indexes.scann.trees import Trained
from realm_jax.indexes.scann.tuning import Point
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFraction,
  PositiveInt,
  require_valid,
)
from realm_jax.storage.json_files import JsonValue

# Vectors of blocks that replace queries where there are none.
_NUM_STAND_INS = 256
# Smallest training sample, in all and per leaf.
_TRAINING_SAMPLE = 1 << 17
_SAMPLED_PER_LEAF = 32
# Numbers of leaves that are tried, relative to the default. All are tried,
# because the best may lie beyond a worse one.
_LEAF_FACTORS = (1, 2, 4, 8)
_MAX_LEAVES_PER_BLOCK = 1 / 16
# A number must be this much faster than another, since times scatter.
_GAIN = 1.05
# Consecutive rows that a sample takes together, because they read faster.
_ROWS_PER_RUN = 16
_BEFORE = "the generation before"
# ScaNN's documentation recommends this threshold.
_ANISOTROPIC_THRESHOLD = 0.2


@dataclasses.dataclass(frozen=True)
class ScannConfig:
  """Builds and loads trees of leaves, with quantized scores and reordering.

  A setting that is None is chosen by measuring. The number of leaves is chosen
  once, on a sample of the corpus, for the first generation; later ones reuse
  it, and the leaves themselves, while they meet the recall target. How much of
  the tree is searched is chosen for each generation. The choices depend on
  measured times, so a run that must repeat bit for bit from its checkpoints
  alone sets all of them, and turns `reuse` off.

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
    num_leaves: Number of partitions of the vectors.
    num_leaves_searched: Number of leaves that a query searches.
    num_reordered: Number of the best by code that are scored again, at least
      k.
    reordering: Type of the vectors that are scored again, `float32` or
      `bfloat16`.
    dims_per_code: Dimensions that share one 4-bit code.
    training_sample: Number of vectors that a tree is trained on; None is 32
      per leaf, at least 131,072, or the default of ScaNN's builder.
    tuning_sample: Number of vectors on which numbers of leaves are tried.
    reuse: Whether leaves and codebooks of the previous generation are reused
      while they meet the target.
    seed: Seed of samples and of the first centroids.
    threads: Threads for searching, a setting of the host that no manifest
      stores; None uses every core.
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
  training_sample: PositiveInt | None = None
  tuning_sample: PositiveInt = 1 << 17
  reuse: bool = True
  seed: NonNegativeInt = 0
  threads: PositiveInt | None = dataclasses.field(
    default=None, metadata=HOST_SETTING
  )

  def __post_init__(self) -> None:
    require_valid(self)

  def build(
    self, blocks: Blocks, options: BuildOptions = DEFAULT_OPTIONS
  ) -> ScannIndex:
    """Builds the tree that meets the target fastest, and loads it.

    Without queries, recall is measured with vectors of blocks as queries.
    Without a directory, the files are removed once they are loaded. Our own
    builder runs on jax's default device.

    Raises:
      RecallError: The target is not met, and `below_target` is off.
      ValueError: ScaNN cannot build such a tree over these vectors.
      LibraryError: ScaNN is not installed.
      OSError: The disk is full.
    """
    if options.directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        directory = Path(scratch) / self.kind
        kept = dataclasses.replace(options, directory=directory)
        return self.build(blocks, kept)
    if blocks.num_blocks < self.brute_force_below:
      vectors = _in_memory(blocks.embedded())
      builder = library().builder(vectors, 10, "dot_product")
      write_searcher(builder.score_brute_force(), options.directory)
      return self.load(options.directory, blocks)
    return _Build(self, blocks, options, options.directory).run()

  def load(
    self, directory: Path, blocks: Blocks, *, mesh: Mesh | None = None
  ) -> ScannIndex:
    """Loads what `build` wrote."""
    del mesh
    tree = Tree.read(directory)
    return ScannIndex(directory, blocks, tree=tree, threads=self.threads)


class _Build:
  """The build of one tree, in a new directory."""

  def __init__(
    self,
    config: ScannConfig,
    blocks: Blocks,
    options: BuildOptions,
    directory: Path,
  ):
    self._config, self._blocks = config, blocks
    self._options, self._directory = options, directory
    vectors = blocks.embedded()
    queries = options.queries
    if queries is None or queries.vectors is None:
      sample = _draw(vectors, _NUM_STAND_INS, seed=config.seed + 1)
      queries = QueryBatch.of_vectors(sample)
    self._k = min(config.recall_k, blocks.num_blocks)
    # Recall is a little lower for queries that the tree is not tuned on.
    self._aim = config.recall_target + (1 - config.recall_target) / 10
    library()  # It may be missing.
    installed = importlib.metadata.version("scann")
    self._is_own = config.builder == "own"
    if self._is_own and installed != trees.FORMATS_VERSION:
      self._is_own = False
      logging.warning(
        "scann %s is installed, and our builder writes the formats of %s: "
        "ScaNN's own builds the index, which needs all vectors in memory",
        *(installed, trees.FORMATS_VERSION),
      )
    self._truth = GroundTruth(vectors, queries, self._k)
    self._report: dict[str, JsonValue] = {
      "recall_target": config.recall_target,
      "recall_k": self._k,
    }

  def run(self) -> ScannIndex:
    """Writes, loads and measures trees until one meets the target."""
    config = self._config
    recall = 0.0
    for num_leaves, trained in self._attempts():
      self._options.check()
      # Of an attempt before.
      shutil.rmtree(self._directory, ignore_errors=True)
      index = self._tree(self._directory, self._blocks, num_leaves, trained)
      point, points = self._fastest_point(index, self._truth)
      recall = point.recall
      is_new = self._report["trained_for"] != _BEFORE
      if recall >= config.recall_target or (config.below_target and is_new):
        self._report |= {
          "num_leaves": num_leaves,
          **dataclasses.asdict(point),
          "curve": [dataclasses.asdict(p) for p in points],
        }
        index.report = self._report
        index.tree = Tree(
          num_leaves, point.leaves_searched, point.num_reordered
        )
        index.tree.write(self._directory)
        return index
      del index
      logging.info(
        "With %d leaves, trained for %s, recall@%d is %.3f of %.3f",
        *(num_leaves, self._report["trained_for"], self._k, recall),
        config.recall_target,
      )
    raise RecallError(
      f"the index reaches recall@{self._k} {recall:.3f} of "
      f"{config.recall_target}; search more (num_leaves_searched, "
      "num_reordered), lower recall_target, or bind "
      "ScannConfig.below_target=True to publish it all the same"
    )

  def _attempts(self) -> Iterator[tuple[int, Trained | None]]:
    """Yields numbers of leaves, and the leaves: what takes least time first.

    Without leaves, ScaNN's own builder trains them.
    """
    config, vectors = self._config, self._blocks.embedded()
    num_leaves = config.num_leaves
    if previous := self._previous():
      num_leaves, trained = previous
      if trained is not None:
        self._report["trained_for"] = _BEFORE
        yield num_leaves, trained
    self._report["trained_for"] = "this generation"
    if num_leaves is not None:
      yield num_leaves, self._train(vectors, num_leaves)
    if config.num_leaves is None:
      start = time.perf_counter()
      num_leaves = self._choose_leaves()
      self._report["trials_seconds"] = time.perf_counter() - start
      yield num_leaves, self._train(vectors, num_leaves)

  def _previous(self) -> tuple[int, Trained | None] | None:
    """Returns the number of leaves of the previous generation, and the leaves.

    Without the leaves where ScaNN's own builder builds, which cannot take them.
    """
    directory, config = self._options.previous, self._config
    if directory is None or not config.reuse:
      return None
    try:
      tree = Tree.read(directory)
      if tree is None or config.num_leaves not in (None, tree.num_leaves):
        return None
      if not self._is_own:
        return tree.num_leaves, None
      dim = self._blocks.embedded().shape[1]
      width = config.dims_per_code
      trained = trees.read_trained(directory, tree.num_leaves, width, dim)
      return tree.num_leaves, trained
    except IndexLoadError as error:
      logging.warning("%s; choosing another tree", error)
      return None

  def _choose_leaves(self) -> int:
    """Builds trees over a sample of the corpus; returns the fastest one's.

    Its rate on the whole corpus is predicted from a point that scores as many
    vectors there.
    """
    config, num_blocks = self._config, self._blocks.num_blocks
    default = default_leaves(num_blocks)
    sample = _draw(
      self._blocks.embedded(), config.tuning_sample, seed=config.seed
    )
    truth = GroundTruth(sample, self._truth.queries, self._k)
    # Trials lie beside the index, where leftovers of a kill are removed.
    self._directory.parent.mkdir(parents=True, exist_ok=True)
    best, best_rate, best_recall = default, 0.0, -1.0
    trials: list[JsonValue] = []
    for factor in _LEAF_FACTORS:
      num_leaves = default * factor
      if factor > 1 and num_leaves > len(sample) * _MAX_LEAVES_PER_BLOCK:
        break
      self._options.check()
      with tempfile.TemporaryDirectory(
        prefix="trial_", dir=self._directory.parent
      ) as scratch:
        trained = self._train(sample, num_leaves)
        blocks = Blocks(len(sample), sample)
        index = self._tree(Path(scratch), blocks, num_leaves, trained)
      point, _ = self._fastest_point(index, truth)
      rate = 0.0
      if point.recall >= self._aim:
        wanted = point.leaves_searched * num_blocks / len(sample)
        leaves = min(num_leaves, round(wanted))
        alike = tuning.measure(index, truth, leaves, point.num_reordered)
        # Where the sample has too few leaves, time is taken to grow with them.
        rate = alike.queries_per_second * min(1.0, leaves / wanted)
      trials.append(
        {
          "num_leaves": num_leaves,
          **dataclasses.asdict(point),
          "predicted_queries_per_second": rate,
        }
      )
      # Below the target, the higher recall is better.
      is_nearer = best_rate == 0 and point.recall > best_recall
      if rate > _GAIN * best_rate or is_nearer:
        best, best_rate, best_recall = num_leaves, rate, point.recall
    self._report["trials"] = trials
    return best

  def _fastest_point(
    self, index: ScannIndex, truth: GroundTruth
  ) -> tuple[Point, list[Point]]:
    config = self._config
    return tuning.fastest_point(
      index,
      truth,
      target=self._aim,
      leaves_searched=config.num_leaves_searched,
      num_reordered=config.num_reordered,
    )

  def _train(self, vectors: Rows, num_leaves: int) -> Trained | None:
    """Trains leaves and codes on a sample, where our own builder builds."""
    config = self._config
    if not self._is_own:
      return None
    size = config.training_sample or max(
      _TRAINING_SAMPLE, _SAMPLED_PER_LEAF * num_leaves
    )
    sample = _draw(vectors, size, seed=config.seed)
    return trees.train(
      sample, num_leaves, config.dims_per_code, seed=config.seed
    )

  def _tree(
    self,
    directory: Path,
    blocks: Blocks,
    num_leaves: int,
    trained: Trained | None,
  ) -> ScannIndex:
    """Writes a tree and loads it; each search sets how much it searches.

    Where there are no trained leaves, ScaNN's builder trains them.
    """
    config, scann, vectors = self._config, library(), blocks.embedded()
    sample: dict[str, Any] = {}
    codes: dict[str, Any] = {}
    if trained is None:
      vectors = _in_memory(vectors)
      codes["anisotropic_quantization_threshold"] = _ANISOTROPIC_THRESHOLD
      if config.training_sample is not None:
        sample["training_sample_size"] = config.training_sample
    # Our builder takes nothing but the configuration from ScaNN's.
    some = vectors if trained is None else np.zeros((1, vectors.shape[1]))
    builder = scann.builder(np.asarray(some, np.float32), 10, "dot_product")
    # k-means++ from ScaNN's fixed seed repeats a build, and a random start
    # does not.
    builder.tree(
      num_leaves, num_leaves_to_search=1, random_init=False, **sample
    )
    builder.score_ah(config.dims_per_code, **codes, **sample)
    kinds = scann.scann_builder.ReorderType
    builder.reorder(1, quantize=kinds[config.reordering.upper()])
    if trained is None:
      write_searcher(builder, directory)
    else:
      trees.write(
        directory,
        vectors,
        trained,
        builder.create_config(),
        reordering=config.reordering,
        check=self._options.check,
      )
    tree = Tree(num_leaves, 1, self._k)
    return ScannIndex(directory, blocks, tree=tree, threads=config.threads)


def default_leaves(num_blocks: int) -> int:
  """Returns the power of two nearest to the square root of the blocks."""
  return 2 ** round(math.log2(max(1, num_blocks)) / 2)


def _in_memory(vectors: Rows) -> Float32[np.ndarray, "n d"]:
  return np.ascontiguousarray(vectors[0 : vectors.shape[0]], np.float32)


def _draw(
  vectors: Rows, count: int, *, seed: int = 0
) -> Float32[np.ndarray, "n d"]:
  """Returns about `count` random vectors in random order, at most all."""
  rng = np.random.default_rng(seed)
  num_blocks = vectors.shape[0]
  if num_blocks <= count:
    sample = np.asarray(vectors[0:num_blocks], np.float32)
  else:
    size, num_runs = _ROWS_PER_RUN, num_blocks // _ROWS_PER_RUN
    runs = rng.choice(num_runs, min(-(-count // size), num_runs), False)
    sample = np.concatenate(
      [vectors[run * size : (run + 1) * size] for run in np.sort(runs).tolist()]
    ).astype(np.float32)
  return sample[rng.permutation(len(sample))]
