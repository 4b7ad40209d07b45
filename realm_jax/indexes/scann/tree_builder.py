"""Builds ScaNN's tree: what is open is tried, what did before is kept."""

import dataclasses
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

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
from realm_jax.indexes.scann import files as scann_files
from realm_jax.indexes.scann import index as scann_index
from realm_jax.indexes.scann import tree as scann_tree
from realm_jax.indexes.scann import tuning
from realm_jax.indexes.scann.files import Structure, Tree
from realm_jax.indexes.scann.index import ScannIndex, vectors_of
from realm_jax.indexes.truth import best_scores

if TYPE_CHECKING:
  from realm_jax.indexes.scann.config import ScannConfig

# What stands in for queries where there are none: vectors of blocks.
_STAND_INS = 256
# The least that a tree is trained on, and for each leaf of it.
_TRAINING_SAMPLE = 1 << 17
_SAMPLED_PER_LEAF = 32
# What is tried of what the configuration leaves open, and how much faster it
# must be. Second leaves take twice the codes and three times the time to build.
_VARIANTS: tuple[tuple[dict[str, Any], float], ...] = (
  ({"spherical": True}, tuning.GAIN),
  ({"soar_lambda": 1.5}, 1.25),
  ({"avq_threshold": 0.2}, tuning.GAIN),
  ({"anisotropic_threshold": 0.2}, tuning.GAIN),
)
# Two bytes for a number halve the memory and the time to load. What the others
# gain or cost, a sample cannot tell: its vectors are in the processor's caches.
_REORDERING = "bfloat16"
_OTHER_REORDERINGS: tuple[tuple[dict[str, Any], float], ...] = (
  ({"reordering": "float32"}, 1.25),
  ({"reordering": "int8"}, 1.25),
)
# Where a report says that structure and training come from.
_BEFORE, _THIS = "the generation before", "this generation"
_TRIALS = "trials"


class TreeBuilder:
  """One build of a tree, as the settings want it.

  Args:
    config: the settings.
    blocks: with vectors.
    options: of the build.
  """

  def __init__(
    self,
    config: "ScannConfig",
    blocks: Blocks,
    options: BuildOptions,
  ):
    self._config, self._blocks = config, blocks
    vectors = self._vectors = vectors_of(blocks)
    self._check, self._previous = options.check, options.previous
    queries = options.queries
    if queries is None or queries.vectors is None:
      stand_ins = scann_tree.draw(vectors, _STAND_INS, seed=config.seed + 1)
      queries = QueryBatch(np.zeros((len(stand_ins), 1), np.int32), stand_ins)
    self._queries = queries
    self._k = min(config.recall_k, blocks.num_blocks)
    # Other queries fare a little worse than those that it is tuned on.
    self._aim = config.recall_target + (1 - config.recall_target) / 10

  def build(self, directory: Path) -> ScannIndex:
    """Writes, loads and measures the tree.

    Raises:
      RecallError: the target is not met, and need be.
      OSError: the disk is full.
    """
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
      if self._is_met(report):
        return index
      del index
      self._start_over(directory, report, "they are trained again")
      index = self._train_and_write(directory, structure, truth, report)
      if self._is_met(report) or config.below_target or not self._is_open():
        return self._judged(index, report)
      del index
      self._start_over(directory, report, "the structure is chosen afresh")
    structure = self._chosen(directory, report)
    index = self._train_and_write(directory, structure, truth, report)
    return self._judged(index, report)

  def _is_met(self, report: dict[str, Any]) -> bool:
    return report["recall"] >= self._config.recall_target

  def _judged(self, index: ScannIndex, report: dict[str, Any]) -> ScannIndex:
    config = self._config
    if not self._is_met(report) and not config.below_target:
      raise RecallError(
        f"the index reaches recall@{self._k} {report['recall']:.3f} of "
        f"{config.recall_target}; search more (num_leaves_searched, "
        "num_reordered), lower recall_target, or bind "
        "ScannConfig.below_target=True to publish it all the same"
      )
    return index

  def _start_over(
    self, directory: Path, report: dict[str, Any], how: str
  ) -> None:
    logging.info(
      "leaves and codebooks of %s, in the structure of %s, reach recall@%d "
      "%.3f of %.3f: %s",
      report["trained_for"],
      report["structure_of"],
      self._k,
      report["recall"],
      self._config.recall_target,
      how,
    )
    shutil.rmtree(directory)

  def _chosen(self, directory: Path, report: dict[str, Any]) -> Structure:
    start = time.perf_counter()
    structure, tried, rival = self._choose(directory.parent)
    report["structure_of"] = _TRIALS
    report["trials"] = [_plain(trial) for trial in tried]
    if rival is not None:
      report["faiss_on_the_sample"] = dataclasses.asdict(rival)
      ours = next(t.point for t in tried if t.structure == structure)
      report["times_as_fast_as_faiss"] = (
        ours.queries_per_second / rival.queries_per_second
      )
    report["trials_seconds"] = time.perf_counter() - start
    return structure

  def _train_and_write(
    self,
    directory: Path,
    structure: Structure,
    truth: tuning.Truth,
    report: dict[str, Any],
  ) -> ScannIndex:
    start = time.perf_counter()
    trained = self._train(self._vectors, structure)
    report["trained_for"] = _THIS
    report["train_seconds"] = time.perf_counter() - start
    return self._write(directory, structure, trained, truth, report)

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
    structure = tree.structure
    if any(
      getattr(structure, name) != value
      for name, value in self._config.given().items()
    ):
      return None
    if not trained.fits(structure, dim=self._vectors.shape[1]):
      logging.warning(
        "%s has %s centres and %s codebooks, for another tree than its own or "
        "vectors of another dimension than %d; the structure is chosen afresh",
        previous,
        trained.centres.shape,
        trained.codebooks.shape,
        self._vectors.shape[1],
      )
      return None
    return structure, trained

  def _variants(self) -> list[tuple[dict[str, Any], float]]:
    """What is tried of what the configuration leaves open."""
    config = self._config
    variants = _VARIANTS
    if config.tuning_sample >= self._blocks.num_blocks:
      variants += _OTHER_REORDERINGS
    return [v for v in variants if not v[0].keys() & config.given().keys()]

  def _is_open(self) -> bool:
    """Whether there is a structure to be chosen."""
    return bool(self._variants()) or self._config.num_leaves is None

  def _choose(
    self, scratch_dir: Path
  ) -> tuple[Structure, list[tuning.Trial], tuning.Point | None]:
    """Tries structures on a sample, unless nothing is left open.

    Args:
      scratch_dir: where each is written, and removed.

    Returns:
      The best, all that were tried, and what FAISS does on the sample.
    """
    config, fixed = self._config, self._config.given()
    num_blocks = self._blocks.num_blocks
    start = Structure(default_leaves(num_blocks), reordering=_REORDERING)
    start = dataclasses.replace(start, **fixed)
    if not self._is_open():
      return start, [], None
    sample = scann_tree.draw(
      self._vectors, config.tuning_sample, seed=config.seed
    )
    blocks = Blocks(num_blocks=len(sample), vectors=sample)
    truth = self._truth(sample)

    scratch_dir.mkdir(parents=True, exist_ok=True)
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
      with tempfile.TemporaryDirectory(
        prefix="trial_", dir=scratch_dir
      ) as scratch:
        self._tree(Path(scratch), sample, structure, trained)
        index = scann_index.load(scratch, blocks, threads=config.threads)
      point, points = self._fastest(index, structure, truth)
      if len(sample) < num_blocks:
        as_many = tuning.point_of_as_many(
          index.search_at,
          truth,
          point,
          num_leaves=structure.num_leaves,
          growth=num_blocks / len(sample),
        )
        points = [*points, as_many]
      return point, points

    structure, tried = tuning.choose_structure(
      start,
      self._variants(),
      measure,
      target=self._aim,
      num_blocks=num_blocks,
      sampled=len(sample),
      may_vary_leaves="num_leaves" not in fixed,
    )
    return structure, tried, self._rival(blocks, truth)

  def _rival(self, blocks: Blocks, truth: tuning.Truth) -> tuning.Point | None:
    """FAISS's fastest point on the same blocks; None where it is not there."""
    config = FaissConfig(brute_force_below=0, threads=self._config.threads)
    try:
      index = config.build(blocks)
    except (MissingLibraryError, ValueError) as error:
      logging.info("no comparison with FAISS: %s", error)
      return None
    point, _ = tuning.fastest_point(
      index.search_at,
      truth,
      target=self._aim,
      num_leaves=index.num_lists,
      num_blocks=blocks.num_blocks,
    )
    return point

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
    index = scann_index.load(
      directory, self._blocks, threads=self._config.threads
    )
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
      target=self._aim,
      num_leaves=structure.num_leaves,
      num_blocks=index.num_blocks,
      leaves_searched=self._config.num_leaves_searched,
      num_reordered=self._config.num_reordered,
    )


def default_leaves(num_blocks: int) -> int:
  """The power of two nearest to the square root of the number of blocks."""
  return 2 ** round(math.log2(max(1, num_blocks)) / 2)


def _plain(trial: tuning.Trial) -> dict[str, Any]:
  return {
    "structure": dataclasses.asdict(trial.structure),
    **dataclasses.asdict(trial.point),
    "predicted_queries_per_second": trial.predicted,
  }
