"""Builds ScaNN's tree: reuses the previous one, or tunes and trains another."""

import contextlib
import dataclasses
import functools
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Float32

from realm_jax.files.json_value import JsonValue
from realm_jax.indexes.exact_neighbors import best_scores
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import (
  Blocks,
  BuildOptions,
  IndexLoadError,
  MissingLibraryError,
  QueryBatch,
  RecallError,
  Rows,
  check_vectors,
  gather,
)
from realm_jax.indexes.scann import files, stock, tree, tuning
from realm_jax.indexes.scann.index import ScannIndex, load, vectors_of
from realm_jax.indexes.scann.settings import ScannSettings, Structure
from realm_jax.indexes.scann.tuning import GroundTruth, Point, Variant

# Vectors of blocks that replace queries where there are none.
_NUM_STAND_INS = 256
# Smallest training sample, in all and per leaf.
_TRAINING_SAMPLE = 1 << 17
_SAMPLED_PER_LEAF = 32
# Changes to try where a setting is None, and the speed-up that each must bring.
# Second leaves take twice the codes and three times the time to build.
_VARIANTS: tuple[Variant, ...] = (
  ({"spherical": True}, tuning.GAIN),
  ({"soar_lambda": 1.5}, 1.25),
  ({"avq_threshold": 0.2}, tuning.GAIN),
  ({"anisotropic_threshold": 0.2}, tuning.GAIN),
)
# bfloat16 halves the memory and the time to load. A sample cannot tell what the
# other types gain or cost, because its vectors fit in the processor's caches.
_REORDERING = "bfloat16"
_OTHER_REORDERINGS: tuple[Variant, ...] = (
  ({"reordering": "float32"}, 1.25),
  ({"reordering": "int8"}, 1.25),
)
# Values of a report's `structure_of` and `trained_for`.
_PREVIOUS, _THIS = "the generation before", "this generation"
_TRIALS, _SETTINGS = "trials", "the settings"

Report = dict[str, JsonValue]


class TreeBuilder:
  """Builds one tree by its settings.

  Args:
    settings: Settings of the index.
    blocks: Blocks with vectors.
    options: Options of the build.
  """

  def __init__(
    self, settings: ScannSettings, blocks: Blocks, options: BuildOptions
  ):
    self._settings, self._blocks = settings, blocks
    vectors = self._vectors = vectors_of(blocks)
    self._check, self._previous = options.check, options.previous
    queries = options.queries
    if queries is None or queries.vectors is None:
      stand_ins = tree.draw(vectors, _NUM_STAND_INS, seed=settings.seed + 1)
      queries = QueryBatch(np.zeros((len(stand_ins), 1), np.int32), stand_ins)
    self._queries = queries
    self._k = min(settings.recall_k, blocks.num_blocks)
    self._first_leaves = default_leaves(blocks.num_blocks)
    # Recall is a little lower for queries that the tree is not tuned on.
    self._aim = settings.recall_target + (1 - settings.recall_target) / 10

  def build(self, directory: Path) -> ScannIndex:
    """Writes, loads and measures the tree.

    Raises:
      RecallError: The target is not met, and `below_target` is off.
      OSError: The disk is full.
    """
    settings = self._settings
    target = settings.recall_target
    report: Report = {"recall_target": target, "recall_k": self._k}
    with _timed(report, "truth_seconds"):
      truth = self._ground_truth(self._vectors)
    if settings.builder == "stock":
      report |= {"structure_of": _SETTINGS, "trained_for": _THIS}
      default = stock.default_structure(self._first_leaves)
      structure = settings.structure(default)
      return self._accept(
        *self._write(directory, structure, None, truth, report)
      )
    reusable = self._previous_tree()
    if reusable is not None:
      structure, trained = reusable
      report |= {"structure_of": _PREVIOUS, "trained_for": _PREVIOUS}
      index, point = self._write(directory, structure, trained, truth, report)
      if point.recall >= target:
        return index
      del index
      self._discard(directory, report, "training again")
      index, point = self._train_and_write(directory, structure, truth, report)
      if point.recall >= target or settings.below_target or not self._is_open():
        return self._accept(index, point)
      del index
      self._discard(directory, report, "choosing another structure")
    with _timed(report, "trials_seconds"):
      structure = self._choose_structure(directory.parent, report)
    return self._accept(
      *self._train_and_write(directory, structure, truth, report)
    )

  def _accept(self, index: ScannIndex, point: Point) -> ScannIndex:
    settings = self._settings
    if point.recall < settings.recall_target and not settings.below_target:
      raise RecallError(
        f"the index reaches recall@{self._k} {point.recall:.3f} of "
        f"{settings.recall_target}; search more (num_leaves_searched, "
        "num_reordered), lower recall_target, or bind "
        "ScannConfig.below_target=True to publish it all the same"
      )
    return index

  def _discard(self, directory: Path, report: Report, then: str) -> None:
    logging.info(
      "With leaves and codebooks of %s, in the structure of %s, recall@%d is "
      "%.3f of %.3f: %s",
      report["trained_for"],
      report["structure_of"],
      self._k,
      report["recall"],
      self._settings.recall_target,
      then,
    )
    shutil.rmtree(directory)

  def _previous_tree(self) -> tuple[Structure, tree.Trained] | None:
    """Returns the previous generation's tree, if it may be reused."""
    previous, settings = self._previous, self._settings
    if previous is None or not settings.reuse:
      return None
    try:
      stored = files.read_tree(previous)
      if stored is None:
        return None
      structure = stored.structure
      if settings.structure(structure) != structure:
        return None
      trained = tree.Trained(*files.read_trained(previous))
      if not trained.fits(structure, dim=self._vectors.shape[1]):
        raise IndexLoadError(
          f"{previous} has centroids of shape {trained.centroids.shape} and "
          f"codebooks of shape {trained.codebooks.shape}, which do not fit "
          f"{structure} and vectors of dimension {self._vectors.shape[1]}"
        )
    except IndexLoadError as error:
      logging.warning("%s; choosing another structure", error)
      return None
    return structure, trained

  def _variants(self) -> list[Variant]:
    """Returns the changes to try for settings that are None."""
    settings = self._settings
    variants = _VARIANTS
    if settings.tuning_sample >= self._blocks.num_blocks:
      variants += _OTHER_REORDERINGS
    return [v for v in variants if not v[0].keys() & settings.fixed().keys()]

  def _is_open(self) -> bool:
    """Whether the settings leave a structure to choose."""
    return bool(self._variants()) or self._settings.num_leaves is None

  def _choose_structure(self, scratch_dir: Path, report: Report) -> Structure:
    """Tries structures on a sample, unless the settings leave no choice.

    Each tree is written to a folder of `scratch_dir`, and removed.
    """
    settings, num_blocks = self._settings, self._blocks.num_blocks
    structure = settings.structure(
      Structure(self._first_leaves, reordering=_REORDERING)
    )
    report |= {"structure_of": _TRIALS, "trials": []}
    if not self._is_open():
      return structure
    sample = tree.draw(
      self._vectors, settings.tuning_sample, seed=settings.seed
    )
    truth = self._ground_truth(sample)
    scratch_dir.mkdir(parents=True, exist_ok=True)
    structure, trials = tuning.choose_structure(
      structure,
      self._variants(),
      functools.partial(self._try, sample, truth, scratch_dir, {}),
      target=self._aim,
      num_blocks=num_blocks,
      sampled=len(sample),
      may_vary_leaves=settings.num_leaves is None,
    )
    report["trials"] = [
      {
        "structure": dataclasses.asdict(trial.structure),
        **dataclasses.asdict(trial.point),
        "predicted_queries_per_second": trial.predicted,
      }
      for trial in trials
    ]
    chosen = next(t.point for t in trials if t.structure == structure)
    self._compare_with_faiss(sample, truth, chosen, report)
    return structure

  def _try(
    self,
    sample: Float32[np.ndarray, "n d"],
    truth: GroundTruth,
    scratch_dir: Path,
    trainings: dict[Structure, tree.Trained],
    structure: Structure,
  ) -> tuple[Point, list[Point]]:
    """Builds and measures a structure over the sample.

    `trainings` keeps trainings for structures that differ only in fields on
    which training does not depend. Returns the chosen point, and all measured
    ones.
    """
    self._check()
    key = dataclasses.replace(
      structure, soar_lambda=0.0, anisotropic_threshold=0.0, reordering="int8"
    )
    if key not in trainings:
      trainings[key] = self._train(sample, structure)
    blocks = Blocks(num_blocks=len(sample), vectors=sample)
    with tempfile.TemporaryDirectory(
      prefix="trial_", dir=scratch_dir
    ) as scratch:
      self._write_files(Path(scratch), sample, structure, trainings[key])
      index = load(scratch, blocks, threads=self._settings.threads)
    point, points = self._fastest_point(index, structure, truth)
    if len(sample) < self._blocks.num_blocks:
      equal_work = tuning.point_of_equal_work(
        index.search_at,
        truth,
        point,
        num_leaves=structure.num_leaves,
        growth=self._blocks.num_blocks / len(sample),
      )
      points = [*points, equal_work]
    return point, points

  def _compare_with_faiss(
    self,
    sample: Float32[np.ndarray, "n d"],
    truth: GroundTruth,
    chosen: Point,
    report: Report,
  ) -> None:
    """Reports FAISS's fastest point on the sample, if it is installed."""
    config = FaissConfig(brute_force_below=0, threads=self._settings.threads)
    try:
      index = config.build(Blocks(num_blocks=len(sample), vectors=sample))
    except (MissingLibraryError, ValueError) as error:
      logging.info("No comparison with FAISS: %s", error)
      return
    point, _ = tuning.fastest_point(
      index.search_at,
      truth,
      target=self._aim,
      num_leaves=index.num_lists,
      num_blocks=len(sample),
    )
    report["faiss_on_the_sample"] = dataclasses.asdict(point)
    report["times_as_fast_as_faiss"] = (
      chosen.queries_per_second / point.queries_per_second
    )

  def _train_and_write(
    self,
    directory: Path,
    structure: Structure,
    truth: GroundTruth,
    report: Report,
  ) -> tuple[ScannIndex, Point]:
    with _timed(report, "train_seconds"):
      trained = self._train(self._vectors, structure)
    report["trained_for"] = _THIS
    return self._write(directory, structure, trained, truth, report)

  def _write(
    self,
    directory: Path,
    structure: Structure,
    trained: tree.Trained | None,
    truth: GroundTruth,
    report: Report,
  ) -> tuple[ScannIndex, Point]:
    """Writes and loads the tree, and chooses how much of it is searched."""
    with _timed(report, "write_seconds"):
      self._write_files(directory, self._vectors, structure, trained)
    with _timed(report, "load_seconds"):
      index = load(directory, self._blocks, threads=self._settings.threads)
    with _timed(report, "search_seconds"):
      point, points = self._fastest_point(index, structure, truth)
    report |= {
      "structure": dataclasses.asdict(structure),
      **dataclasses.asdict(point),
      "curve": [dataclasses.asdict(p) for p in points],
    }
    index.report = report
    index.tree = files.Tree(
      structure, point.leaves_searched, point.num_reordered
    )
    files.write_tree(directory, index.tree)
    return index, point

  def _write_files(
    self,
    directory: Path,
    vectors: Rows,
    structure: Structure,
    trained: tree.Trained | None,
  ) -> None:
    """Writes a searcher's files; without `trained`, ScaNN's builder does."""
    if trained is None:
      sample = self._settings.training_sample
      stock.write(directory, vectors, structure, training_sample=sample)
    else:
      tree.write(directory, vectors, structure, trained, check=self._check)
    # A search of one leaf, until measurements choose.
    files.write_tree(directory, files.Tree(structure, 1, self._k))

  def _train(self, vectors: Rows, structure: Structure) -> tree.Trained:
    size = self._settings.training_sample or max(
      _TRAINING_SAMPLE, _SAMPLED_PER_LEAF * structure.num_leaves
    )
    seed = self._settings.seed
    sample = tree.draw(vectors, size, seed=seed)
    return tree.train(sample, structure, seed=seed)

  def _ground_truth(self, vectors: Rows) -> GroundTruth:
    best = best_scores(vectors, self._queries, self._k)
    queries = check_vectors(self._queries, vectors.shape[1])
    return GroundTruth(
      queries=self._queries,
      k=self._k,
      kth_score=best[:, -1],
      score=lambda rows: np.einsum(
        "bd,bkd->bk", queries, gather(vectors, rows)
      ),
    )

  def _fastest_point(
    self, index: ScannIndex, structure: Structure, truth: GroundTruth
  ) -> tuple[Point, list[Point]]:
    return tuning.fastest_point(
      index.search_at,
      truth,
      target=self._aim,
      num_leaves=structure.num_leaves,
      num_blocks=index.num_blocks,
      leaves_searched=self._settings.num_leaves_searched,
      num_reordered=self._settings.num_reordered,
    )


def default_leaves(num_blocks: int) -> int:
  """Returns the power of two nearest to the square root of the blocks."""
  return 2 ** round(math.log2(max(1, num_blocks)) / 2)


@contextlib.contextmanager
def _timed(report: Report, name: str) -> Iterator[None]:
  start = time.perf_counter()
  yield
  report[name] = time.perf_counter() - start
