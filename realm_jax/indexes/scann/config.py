"""Approximate search with ScaNN (Guo et al. 2020, arXiv 1908.10396)."""

import dataclasses
import tempfile
from pathlib import Path
from typing import ClassVar

from absl import logging
from jax.sharding import Mesh

from realm_jax.indexes.protocol import (
  DEFAULT_OPTIONS,
  Blocks,
  BuildOptions,
  PathLike,
)
from realm_jax.indexes.scann import files, stock
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import ScannSettings
from realm_jax.indexes.scann.tree_builder import TreeBuilder


@dataclasses.dataclass(frozen=True)
class ScannConfig(ScannSettings):
  """Builds and loads ScaNN indexes by `ScannSettings`."""

  kind: ClassVar[str] = "scann"
  may_crash: ClassVar[bool] = True

  def build(
    self, blocks: Blocks, options: BuildOptions = DEFAULT_OPTIONS
  ) -> ScannIndex:
    """Builds the tree that meets the target fastest, and loads it.

    Without queries, recall is measured with vectors of blocks as queries.
    Without a directory, the files are removed once they are loaded. Our own
    builder runs on jax's default device.

    Raises:
      RecallError: The target is not met, and `below_target` is off.
      LibraryError: ScaNN is not installed.
    """
    if options.directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        directory = Path(scratch) / self.kind
        kept = dataclasses.replace(options, directory=directory)
        return self.build(blocks, kept)
    if blocks.num_blocks < self.brute_force_below:
      stock.write(options.directory, blocks.embedded(), None)
      return self.load(options.directory, blocks)
    settings = self
    if self.builder == "own" and not scann.reads_our_formats():
      logging.warning(
        "scann %s is installed, and our builder writes the formats of %s: "
        "ScaNN's own builds the index, which needs all vectors in memory",
        scann.installed_version(),
        scann.FORMATS_VERSION,
      )
      settings = dataclasses.replace(self, builder="stock")
    return TreeBuilder(settings, blocks, options, options.directory).build()

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Mesh | None = None
  ) -> ScannIndex:
    """Loads what `build` wrote."""
    del mesh
    tree = files.read_tree(Path(directory))
    return ScannIndex(Path(directory), blocks, tree=tree, threads=self.threads)
