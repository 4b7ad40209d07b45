"""Builds ScaNN's tree: reuses the previous one, or tunes and trains another."""

import contextlib
import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Float32

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import (
  Blocks,
  BuildOptions,
  IndexLoadError,
  QueryBatch,
  RecallError,
  Rows,
)
from realm_jax.indexes.scann import files, stock, tree, tuning
from realm_jax.indexes.scann.files import Trained, Tree
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import ScannSettings, Structure
from realm_jax.indexes.scann.tuning import Point
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
# Values of a report's `structure_of` and `trained_for`.
_PREVIOUS, _THIS = "the generation before", "this generation"
_TRIALS, _SETTINGS = "trials", "the settings"


class TreeBuilder:
  """Builds one tree by its settings, in a new directory."""

  def __init__(
    self,
    settings: ScannSettings,
    blocks: Blocks,
    options: BuildOptions,
    directory: Path,
  ):
    self._settings, self._blocks = settings, blocks
    self._options, self._directory = options, directory
    vectors = self._vectors = blocks.embedded()
    queries = options.queries
    if queries is None or queries.vectors is None:
      queries = QueryBatch.of_vectors(
        tree.draw(vectors, _NUM_STAND_INS, seed=settings.seed + 1)
      )
    self._queries = queries
    self._k = min(settings.recall_k, blocks.num_blocks)
    # Recall is a little lower for queries that the tree is not tuned on.
    self._aim = settings.recall_target + (1 - settings.recall_target) / 10
    self._report: dict[str, JsonValue] = {
      "recall_target": settings.recall_target,
      "recall_k": self._k,
    }
    with self._timed("truth_seconds"):
      self._truth = GroundTruth(vectors, queries, self._k)

  def build(self) -> ScannIndex:
    """Writes, loads and measures the tree.

    Raises:
      RecallError: The target is not met, and `below_target` is off.
      OSError: The disk is full.
    """
    settings, report = self._settings, self._report
    default = default_leaves(self._blocks.num_blocks)
    if settings.builder == "stock":
      report |= {"structure_of": _SETTINGS, "trained_for": _THIS}
      structure = settings.structure(default)
      return self._accept(*self._write(structure, None))
    previous = self._previous_tree()
    if previous is not None:
      structure, trained = previous
      report |= {"structure_of": _PREVIOUS, "trained_for": _PREVIOUS}
      index, point = self._write(structure, trained)
      if point.recall >= settings.recall_target:
        return index
      del index
      self._discard("training again")
      index, point = self._train_and_write(structure)
      is_good = point.recall >= settings.recall_target
      if is_good or settings.below_target or settings.num_leaves is not None:
        return self._accept(index, point)
      del index
      self._discard("choosing another number of leaves")
    structure = settings.structure(default)
    report |= {"structure_of": _TRIALS, "trials": []}
    with self._timed("trials_seconds"):
      if settings.num_leaves is None:
        structure = self._choose_leaves(default)
    return self._accept(*self._train_and_write(structure))

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

  def _discard(self, then: str) -> None:
    report = self._report
    logging.info(
      "With leaves and codebooks of %s, in the structure of %s, recall@%d is "
      "%.3f of %.3f: %s",
      report["trained_for"],
      report["structure_of"],
      self._k,
      report["recall"],
      report["recall_target"],
      then,
    )
    shutil.rmtree(self._directory)

  def _previous_tree(self) -> tuple[Structure, Trained] | None:
    """Returns the previous generation's tree, if it may be reused."""
    previous, settings = self._options.previous, self._settings
    if previous is None or not settings.reuse:
      return None
    try:
      stored = files.read_tree(previous)
      if stored is None:
        return None
      structure = stored.structure
      if settings.structure(structure.num_leaves) != structure:
        return None
      dim = self._vectors.shape[1]
      return structure, files.read_trained(previous, structure, dim)
    except IndexLoadError as error:
      logging.warning("%s; choosing another tree", error)
      return None

  def _choose_leaves(self, default: int) -> Structure:
    """Builds trees over a sample of the corpus; returns the fastest one's."""
    settings = self._settings
    sample = tree.draw(
      self._vectors, settings.tuning_sample, seed=settings.seed
    )
    truth = GroundTruth(sample, self._queries, self._k)
    # Trials lie beside the index, where leftovers of a kill are removed.
    self._directory.parent.mkdir(parents=True, exist_ok=True)
    best: tuple[Structure, Point, float] | None = None
    trials = []
    for factor in _LEAF_FACTORS:
      num_leaves = default * factor
      if factor > 1 and num_leaves > len(sample) * _MAX_LEAVES_PER_BLOCK:
        break
      structure = settings.structure(num_leaves)
      point, predicted = self._try(sample, truth, structure)
      trials.append(
        {
          "structure": dataclasses.asdict(structure),
          **dataclasses.asdict(point),
          "predicted_queries_per_second": predicted,
        }
      )
      # Below the target, the higher recall is better.
      if (
        best is None
        or predicted > _GAIN * best[2]
        or (best[2] == 0 and point.recall > best[1].recall)
      ):
        best = structure, point, predicted
    assert best is not None
    self._report["trials"] = trials
    return best[0]

  def _try(
    self,
    sample: Float32[np.ndarray, "n d"],
    truth: GroundTruth,
    structure: Structure,
  ) -> tuple[Point, float]:
    """Builds a structure over the sample; returns its best point.

    Also returns its predicted queries per second on the whole corpus, measured
    at a point that scores as many vectors there; 0 below the target.
    """
    self._options.check()
    with tempfile.TemporaryDirectory(
      prefix="trial_", dir=self._directory.parent
    ) as scratch:
      trained = self._train(sample, structure)
      self._write_files(Path(scratch), sample, structure, trained)
      blocks = Blocks(len(sample), sample)
      index = self._load(Path(scratch), blocks, structure)
    point, _ = tuning.fastest_point(
      index, truth, self._settings, target=self._aim
    )
    if point.recall < self._aim:
      return point, 0.0
    growth = self._blocks.num_blocks / len(sample)
    if growth == 1:
      return point, point.queries_per_second
    wanted = growth * point.leaves_searched
    leaves = min(structure.num_leaves, round(wanted))
    equal_work = tuning.measure(index, truth, leaves, point.num_reordered)
    # Where the sample has too few leaves, time is taken to grow with them.
    return point, equal_work.queries_per_second * min(1.0, leaves / wanted)

  def _train_and_write(self, structure: Structure) -> tuple[ScannIndex, Point]:
    with self._timed("train_seconds"):
      trained = self._train(self._vectors, structure)
    self._report["trained_for"] = _THIS
    return self._write(structure, trained)

  def _train(self, vectors: Rows, structure: Structure) -> Trained:
    size = self._settings.training_sample or max(
      _TRAINING_SAMPLE, _SAMPLED_PER_LEAF * structure.num_leaves
    )
    seed = self._settings.seed
    return tree.train(tree.draw(vectors, size, seed=seed), structure, seed=seed)

  def _write(
    self, structure: Structure, trained: Trained | None
  ) -> tuple[ScannIndex, Point]:
    """Writes and loads the tree, and chooses how much of it is searched."""
    with self._timed("write_seconds"):
      self._write_files(self._directory, self._vectors, structure, trained)
    with self._timed("load_seconds"):
      index = self._load(self._directory, self._blocks, structure)
    with self._timed("search_seconds"):
      point, points = tuning.fastest_point(
        index, self._truth, self._settings, target=self._aim
      )
    self._report |= {
      "structure": dataclasses.asdict(structure),
      **dataclasses.asdict(point),
      "curve": [dataclasses.asdict(p) for p in points],
    }
    index.report = self._report
    index.tree = Tree(structure, point.leaves_searched, point.num_reordered)
    files.write_tree(self._directory, index.tree)
    return index, point

  def _write_files(
    self,
    directory: Path,
    vectors: Rows,
    structure: Structure,
    trained: Trained | None,
  ) -> None:
    """Writes a searcher's files; without `trained`, ScaNN's builder does."""
    if trained is None:
      sample = self._settings.training_sample
      stock.write(directory, vectors, structure, training_sample=sample)
    else:
      check = self._options.check
      tree.write(directory, vectors, structure, trained, check=check)

  def _load(
    self, directory: Path, blocks: Blocks, structure: Structure
  ) -> ScannIndex:
    """Loads the files for a search of one leaf, until measurements choose."""
    narrow = Tree(structure, 1, self._k)
    threads = self._settings.threads
    return ScannIndex(directory, blocks, tree=narrow, threads=threads)

  @contextlib.contextmanager
  def _timed(self, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    self._report[name] = time.perf_counter() - start


def default_leaves(num_blocks: int) -> int:
  """Returns the power of two nearest to the square root of the blocks."""
  return 2 ** round(math.log2(max(1, num_blocks)) / 2)
