"""Approximate search with ScaNN (Guo et al. 2020, arXiv 1908.10396)."""

import dataclasses
import functools
import math
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from absl import logging
from jaxtyping import Float32

from realm_jax.indexes import scann_files, scann_tree, tuning
from realm_jax.indexes.protocol import (
  PLAIN,
  Blocks,
  BuildOptions,
  IndexLoadError,
  PathLike,
  QueryBatch,
  RecallError,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
  gather,
  in_order,
)
from realm_jax.indexes.scann_files import Structure, Tree
from realm_jax.indexes.truth import best_scores

# What stands in for queries where there are none: vectors of blocks.
_STAND_INS = 256
# The least that a tree is trained on, and for each leaf of it.
_TRAINING_SAMPLE = 1 << 17
_SAMPLED_PER_LEAF = 32
# What is tried of what the configuration leaves open, and how much faster it
# must be; less memory is welcome at the same speed.
_VARIANTS: tuple[tuple[dict[str, Any], float], ...] = (
  ({"spherical": True}, tuning.GAIN),
  ({"soar_lambda": 1.5}, tuning.GAIN),
  ({"avq_threshold": 0.2}, tuning.GAIN),
  ({"anisotropic_threshold": 0.2}, tuning.GAIN),
  ({"reordering": "bfloat16"}, 1 / tuning.GAIN),
  ({"reordering": "int8"}, 1 / tuning.GAIN),
)
# Where a report says that structure and training come from.
_BEFORE, _THIS = "the generation before", "this generation"
_TRIALS = "trials"


@dataclasses.dataclass(frozen=True)
class ScannConfig:
  """A tree of leaves, quantized scores, and better scores for the best.

  What is None is chosen by measuring: how the tree is made once, on a sample
  of the corpus, for the first generation, whose successors take it over; and
  how much of it is searched anew for each generation. Times scatter, so where
  runs must repeat bit for bit from the checkpoints alone, all of it is given.

  Attributes:
    recall_target: the share of the `recall_k` best blocks to find.
    recall_k: see there.
    below_target: whether an index that stays below the target will do.
    brute_force_below: smaller corpora are searched in full, which is faster.
    num_leaves: partitions of the vectors.
    num_leaves_searched: how many of them a query looks into.
    num_reordered: how many of the best by code are scored again; at least k.
    reordering: with `float32`, `bfloat16` or `int8` vectors.
    spherical: whether leaves are made by direction alone.
    soar_lambda: λ of SOAR's second leaves; 0 is without.
    avq_threshold: T of leaves that keep inner products; 0 is without.
    anisotropic_threshold: T of codes that keep inner products; 0 is without.
    dims_per_code: dimensions that share one 4-bit code.
    training_sample: how many vectors a tree is trained on; None is 32 a leaf,
      at least 131,072.
    tuning_sample: how many vectors trees are tried on.
    reuse: whether leaves and codebooks of the generation before are taken over
      where they still meet the target.
    seed: of samples and first leaves.
    threads: for searching; None takes every core.
  """

  kind: ClassVar[str] = "scann"
  may_crash: ClassVar[bool] = True
  recall_target: float = 0.95
  recall_k: int = 8
  below_target: bool = False
  brute_force_below: int = 10_000
  num_leaves: int | None = None
  num_leaves_searched: int | None = None
  num_reordered: int | None = None
  reordering: str | None = None
  spherical: bool | None = None
  soar_lambda: float | None = None
  avq_threshold: float | None = None
  anisotropic_threshold: float | None = None
  dims_per_code: int = 2
  training_sample: int | None = None
  tuning_sample: int = 1 << 18
  reuse: bool = True
  seed: int = 0
  threads: int | None = None

  def __post_init__(self):
    if not 0 < self.recall_target <= 1:
      raise ValueError(
        f"recall_target={self.recall_target}; want a share, above 0 to 1"
      )
    if self.reordering not in (None, *scann_files.REORDERINGS):
      raise ValueError(
        f"reordering={self.reordering!r}; want one of "
        f"{', '.join(scann_files.REORDERINGS)}, or None to choose"
      )

  def build(
    self, blocks: Blocks, options: BuildOptions = PLAIN
  ) -> "ScannIndex":
    """Makes the tree that meets the target fastest, and loads it.

    Without queries, vectors of blocks stand in for them; without a directory,
    the files go when they are loaded. The work runs on jax's default device.

    Raises:
      RecallError: the target is not met, and `below_target` does not allow it.
      OSError: the disk is full.
    """
    vectors = _vectors_of(blocks)
    if options.directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        directory = Path(scratch) / self.kind
        kept = dataclasses.replace(options, directory=directory)
        return self.build(blocks, kept)
    if blocks.num_blocks < self.brute_force_below:
      scann_files.write_brute_force(options.directory, vectors)
      return self.load(options.directory, blocks)
    return _Work(self, vectors, blocks, options).build(options.directory)

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> "ScannIndex":
    """Reads what `build` wrote.

    Raises:
      IndexLoadError: ScaNN cannot read it, or it is of other blocks.
    """
    del mesh
    directory = Path(directory)
    return ScannIndex(
      scann_files.load(directory),
      blocks,
      tree=scann_files.read_tree(directory),
      threads=self.threads,
    )


class ScannIndex:
  """A ScaNN searcher; `ScannConfig` makes it.

  Attributes:
    report: how it was made and what was measured, of one that was just built.
  """

  kind = "scann"
  needs_vectors = True

  def __init__(
    self,
    searcher: Any,
    blocks: Blocks,
    *,
    tree: Tree | None,
    threads: int | None = None,
  ):
    self.num_blocks, self.dim = _vectors_of(blocks).shape
    if searcher.size() != self.num_blocks:
      raise IndexLoadError(
        f"the ScaNN index holds {searcher.size()} blocks and the generation "
        f"{self.num_blocks}; build it again"
      )
    self.report: dict[str, Any] = {}
    self._loaded = searcher
    self._threads = threads or max(1, (os.cpu_count() or 1) - 1)
    self._tree = tree

  @functools.cached_property
  def _searcher(self) -> Any:
    """The searcher, with threads of its own for searching.

    Those that it came with have the priority of the thread that loaded it,
    which may be low; these have that of the thread that searches first.
    """
    self._loaded.set_num_threads(self._threads)
    return self._loaded

  def searching(self, tree: Tree) -> "ScannIndex":
    """The same, and how much of it `search` looks at."""
    self._tree = tree
    return self

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """About the k best blocks of each query; always k of them."""
    check_k(k, self.num_blocks)
    if self._tree is None:
      vectors = check_vectors(queries, self.dim)
      return in_order(*self._searcher.search_batched_parallel(vectors, k))
    return self.search_at(
      queries, k, self._tree.leaves_searched, self._tree.num_reordered
    )

  def search_at(
    self, queries: QueryBatch, k: int, leaves_searched: int, num_reordered: int
  ) -> SearchResult:
    """Searches so many leaves of the tree and reorders so many vectors."""
    assert self._tree is not None
    vectors = check_vectors(queries, self.dim)
    leaves = self._tree.structure.num_leaves
    # Room for k whatever the leaves: twice as many as would do on average.
    searched = max(leaves_searched, -(-2 * k * leaves // self.num_blocks))
    rows, scores = self._search(vectors, k, searched, max(num_reordered, k))
    # Where the leaves held fewer than k, it fills up with NaN.
    short = np.isnan(scores).any(axis=1)
    if short.any():
      rows, scores = rows.copy(), scores.copy()
      rows[short], scores[short] = self._search(
        vectors[short], k, leaves, self.num_blocks
      )
    return in_order(rows, scores)

  def _search(
    self,
    vectors: Float32[np.ndarray, "b d"],
    k: int,
    leaves: int,
    reordered: int,
  ) -> tuple[np.ndarray, np.ndarray]:
    assert self._tree is not None
    return self._searcher.search_batched_parallel(
      vectors,
      k,
      pre_reorder_num_neighbors=min(reordered, self.num_blocks),
      leaves_to_search=min(leaves, self._tree.structure.num_leaves),
      # Half of the queries to each of two cores, rather than all to one.
      batch_size=max(1, min(256, len(vectors) // 2)),
    )


class _Work:
  """One build of a tree."""

  def __init__(
    self,
    config: ScannConfig,
    vectors: Rows,
    blocks: Blocks,
    options: BuildOptions,
  ):
    self._config, self._vectors, self._blocks = config, vectors, blocks
    self._check, self._previous = options.check, options.previous
    queries = options.queries
    if queries is None or queries.vectors is None:
      stand_ins = scann_tree.draw(vectors, _STAND_INS, seed=config.seed + 1)
      queries = QueryBatch(np.zeros((len(stand_ins), 1), np.int32), stand_ins)
    self._queries = queries
    self._k = min(config.recall_k, blocks.num_blocks)

  def build(self, directory: Path) -> ScannIndex:
    config = self._config
    start = time.perf_counter()
    truth = self._truth(self._vectors)
    known = self._known()
    report: dict[str, Any] = {
      "recall_target": config.recall_target,
      "recall_k": self._k,
      "truth_seconds": time.perf_counter() - start,
    }
    if known is not None:
      structure, trained = known
      report |= {"structure_of": _BEFORE, "trained_for": _BEFORE}
      index = self._write(directory, structure, trained, truth, report)
      if report["recall"] >= config.recall_target:
        return index
      logging.info(
        "leaves and codebooks of the generation before reach recall@%d %.3f of "
        "%.3f: they are trained again",
        self._k,
        report["recall"],
        config.recall_target,
      )
      del index
      shutil.rmtree(directory)
    else:
      start = time.perf_counter()
      structure, tried = self._choose()
      report["structure_of"] = _TRIALS
      report["trials"] = [_plain(trial) for trial in tried]
      report["trials_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    trained = self._train(self._vectors, structure)
    report["trained_for"] = _THIS
    report["train_seconds"] = time.perf_counter() - start
    index = self._write(directory, structure, trained, truth, report)
    if report["recall"] < config.recall_target and not config.below_target:
      raise RecallError(
        f"the index reaches recall@{self._k} {report['recall']:.3f} of "
        f"{config.recall_target}; search more (num_leaves_searched, "
        "num_reordered), lower recall_target, or bind "
        "ScannConfig.below_target=True to publish it all the same"
      )
    return index

  def _known(self) -> tuple[Structure, scann_tree.Trained] | None:
    """What the generation before offers, if it is as the settings want."""
    previous = self._previous
    if previous is None or not self._config.reuse:
      return None
    try:
      tree = scann_files.read_tree(previous)
      if tree is None:
        return None
      trained = scann_tree.Trained(*scann_files.read_trained(previous))
    except IndexLoadError as error:
      logging.warning("%s; the structure is chosen afresh", error)
      return None
    wanted = self._fixed()
    is_wanted = all(
      getattr(tree.structure, name) == value for name, value in wanted.items()
    )
    fits = trained.centres.shape[1] == self._vectors.shape[1]
    return (tree.structure, trained) if is_wanted and fits else None

  def _fixed(self) -> dict[str, Any]:
    """The fields of a structure that the configuration gives."""
    names = [field.name for field in dataclasses.fields(Structure)]
    values = {name: getattr(self._config, name) for name in names}
    return {name: v for name, v in values.items() if v is not None}

  def _choose(self) -> tuple[Structure, list[tuning.Trial]]:
    """Tries structures on a sample, unless nothing is left open."""
    config, fixed = self._config, self._fixed()
    num_blocks = self._blocks.num_blocks
    # What rounding costs comes last, when nothing else is in its way.
    start = Structure(default_leaves(num_blocks), reordering="float32")
    start = dataclasses.replace(start, **fixed)
    variants = [v for v in _VARIANTS if not v[0].keys() & fixed.keys()]
    if not variants and "num_leaves" in fixed:
      return start, []
    sample = scann_tree.draw(
      self._vectors, config.tuning_sample, seed=config.seed
    )
    blocks = Blocks(num_blocks=len(sample), vectors=sample)
    truth = self._truth(sample)

    trainings: dict[Structure, scann_tree.Trained] = {}

    def measure(structure):
      self._check()
      # What a tree is trained for, whatever its codes and second leaves.
      learnt = dataclasses.replace(
        structure,
        soar_lambda=0.0,
        anisotropic_threshold=0.0,
        reordering=start.reordering,
      )
      if learnt not in trainings:
        trainings[learnt] = self._train(sample, structure)
      trained = trainings[learnt]
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        self._tree(Path(scratch), sample, structure, trained)
        index = config.load(scratch, blocks)
      return self._fastest(index, structure, truth)

    return tuning.choose_structure(
      start,
      variants,
      measure,
      target=config.recall_target,
      num_blocks=num_blocks,
      sampled=len(sample),
      may_vary_leaves="num_leaves" not in fixed,
    )

  def _write(
    self,
    directory: Path,
    structure: Structure,
    trained: scann_tree.Trained,
    truth: tuning.Truth,
    report: dict[str, Any],
  ) -> ScannIndex:
    """Writes and loads the tree, and sets how much of it is searched."""
    start = time.perf_counter()
    self._tree(directory, self._vectors, structure, trained)
    report["write_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    index = self._config.load(directory, self._blocks)
    report["load_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    point, points = self._fastest(index, structure, truth)
    report["search_seconds"] = time.perf_counter() - start
    report |= {
      "structure": dataclasses.asdict(structure),
      **dataclasses.asdict(point),
      "curve": [dataclasses.asdict(p) for p in points],
    }
    tree = Tree(structure, point.leaves_searched, point.num_reordered)
    scann_files.write_tree(directory, tree)
    index.report = report
    return index.searching(tree)

  def _tree(
    self,
    directory: Path,
    vectors: Rows,
    structure: Structure,
    trained: scann_tree.Trained,
  ) -> None:
    scann_tree.write(directory, vectors, structure, trained, check=self._check)
    # Until something is measured.
    scann_files.write_tree(directory, Tree(structure, 1, self._k))

  def _train(self, vectors: Rows, structure: Structure) -> scann_tree.Trained:
    size = self._config.training_sample or max(
      _TRAINING_SAMPLE, _SAMPLED_PER_LEAF * structure.num_leaves
    )
    seed = self._config.seed
    sample = scann_tree.draw(vectors, size, seed=seed)
    return scann_tree.train(sample, structure, seed=seed)

  def _truth(self, vectors: Rows) -> tuning.Truth:
    found = best_scores(vectors, self._queries, self._k)
    own = check_vectors(self._queries, vectors.shape[1])
    return tuning.Truth(
      queries=self._queries,
      k=self._k,
      worst=found[:, -1],
      score=lambda rows: np.einsum("bd,bkd->bk", own, gather(vectors, rows)),
    )

  def _fastest(
    self, index: ScannIndex, structure: Structure, truth: tuning.Truth
  ) -> tuple[tuning.Point, list[tuning.Point]]:
    return tuning.fastest_point(
      index.search_at,
      truth,
      target=self._config.recall_target,
      num_leaves=structure.num_leaves,
      num_blocks=index.num_blocks,
      leaves_searched=self._config.num_leaves_searched,
      num_reordered=self._config.num_reordered,
    )


def default_leaves(num_blocks: int) -> int:
  """The power of two nearest to the square root of the number of blocks."""
  return 2 ** round(math.log2(max(1, num_blocks)) / 2)


def _vectors_of(blocks: Blocks) -> Rows:
  if blocks.vectors is None:
    raise ValueError("ScaNN needs the blocks' vectors; embed them first")
  return blocks.vectors


def _plain(trial: tuning.Trial) -> dict[str, Any]:
  return {
    "structure": dataclasses.asdict(trial.structure),
    **dataclasses.asdict(trial.point),
    "predicted_queries_per_second": trial.predicted,
  }
