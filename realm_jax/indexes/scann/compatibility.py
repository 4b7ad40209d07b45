"""Checks that the installed ScaNN reads the files of our own builder."""

import contextlib
import tempfile
import typing
from pathlib import Path

import numpy as np

from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  Blocks,
  IndexConfig,
  LibraryError,
  QueryBatch,
)
from realm_jax.indexes.scann import files, tree
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.settings import Reordering, Structure


def check_formats(config: IndexConfig) -> None:
  """Checks that ScaNN reads our files, before hours of work depend on it.

  The version that the formats were read from does. Any other version searches
  small trees first, in a process of its own since it might crash.

  Raises:
    LibraryError: The installed version reads other formats.
  """
  scann.library()
  installed = scann.installed_version()
  if installed == scann.FORMATS_VERSION:
    return
  with tempfile.TemporaryDirectory(prefix="realm_scann_check_") as scratch:
    try:
      for reordering in typing.get_args(Reordering):
        spilled = 1.5 if reordering == "bfloat16" else 0.0
        structure = Structure(4, soar_lambda=spilled, reordering=reordering)
        _check(config, Path(scratch) / reordering, structure)
    except Exception as error:  # Anything may have changed.
      raise LibraryError(
        f"scann {installed} does not read the files of our own builder "
        f"({type(error).__name__}: {error}), which writes the formats of scann "
        f"{scann.FORMATS_VERSION}; `pip install scann=={scann.FORMATS_VERSION}`"
        ", or bind ScannConfig.builder='stock' to build with ScaNN's own "
        "builder, which needs all vectors in memory"
      ) from error


def _check(config: IndexConfig, directory: Path, structure: Structure) -> None:
  """Writes and searches a tree; raises if the nearest neighbors are missed."""
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((256, 8)).astype(np.float32)
  tree.write(directory, vectors, structure, tree.train(vectors, structure))
  files.write_tree(directory, files.Tree(structure, structure.num_leaves, 64))
  index = IsolatedIndex(config, directory, Blocks(len(vectors), vectors))
  with contextlib.closing(index):
    index.wait_until_loaded()
    found = index.search(QueryBatch.of_vectors(vectors), 1)
  best = (vectors @ vectors.T).max(axis=1)
  scores = np.sum(vectors * vectors[found.rows[:, 0]], axis=1)
  if np.mean(scores > 0.95 * best) < 0.9 or not np.allclose(
    found.scores[:, 0], scores, rtol=0.05, atol=0.05
  ):
    raise ValueError("its search misses the nearest neighbors")
