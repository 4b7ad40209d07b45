"""Approximate search with ScaNN (Guo et al. 2020, arXiv 1908.10396)."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from realm_jax.indexes.protocol import (
  OF_HOST,
  PLAIN,
  Blocks,
  BuildOptions,
  PathLike,
)
from realm_jax.indexes.scann import files as scann_files
from realm_jax.indexes.scann import index as scann_index
from realm_jax.indexes.scann.files import Structure
from realm_jax.indexes.scann.index import ScannIndex, vectors_of
from realm_jax.indexes.scann.tree_builder import TreeBuilder

_LEAST = {
  "recall_k": 1,
  "brute_force_below": 0,
  "num_leaves_searched": 1,
  "num_reordered": 1,
  "training_sample": 1,
  "tuning_sample": 1,
  "seed": 0,
  "threads": 1,
}


@dataclasses.dataclass(frozen=True)
class ScannConfig:
  """A tree of leaves, quantized scores, and better scores for the best.

  What is None is chosen by measuring: how the tree is made once, on a sample
  of the corpus, for the first generation, whose successors take it over while
  they meet the target with it; and how much of it is searched anew for each
  generation. Times scatter, so where runs must repeat bit for bit from the
  checkpoints alone, all of it is given, and `reuse` is off.

  Attributes:
    recall_target: the share of the `recall_k` best blocks to find. What is
      chosen aims at a tenth of the rest more, for queries that it is not tuned
      on; what is published is held against the target itself.
    recall_k: see there.
    below_target: whether an index that stays below the target will do.
    brute_force_below: smaller corpora are searched in full, which is faster.
    num_leaves: partitions of the vectors.
    num_leaves_searched: how many of them a query looks into.
    num_reordered: how many of the best by code are scored again; at least k.
    reordering: with `float32`, `bfloat16` or `int8` vectors; None is bfloat16,
      unless the tuning sample is all there is and another type is a quarter
      faster.
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
    threads: for searching, of this host, and so in no manifest; None takes
      every core.
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
  tuning_sample: int = 1 << 17
  reuse: bool = True
  seed: int = 0
  threads: int | None = dataclasses.field(default=None, metadata=OF_HOST)

  def __post_init__(self):
    if not 0 < self.recall_target <= 1:
      raise ValueError(
        f"recall_target={self.recall_target}; want a share, above 0 to 1"
      )
    for name, least in _LEAST.items():
      scann_files.at_least(self, name, least)
    # What is given of a structure is held against what one can be.
    values: dict[str, Any] = {"num_leaves": 1, **self.given()}
    Structure(**values)

  def given(self) -> dict[str, Any]:
    """The fields of a `Structure` that are not left open."""
    names = [field.name for field in dataclasses.fields(Structure)]
    values = {name: getattr(self, name) for name in names}
    return {name: v for name, v in values.items() if v is not None}

  def build(self, blocks: Blocks, options: BuildOptions = PLAIN) -> ScannIndex:
    """Makes the tree that meets the target fastest, and loads it.

    Without queries, vectors of blocks stand in for them; without a directory,
    the files go when they are loaded. The work runs on jax's default device.

    Raises:
      RecallError: the target is not met, and `below_target` does not allow it.
      OSError: the disk is full.
    """
    if options.directory is None:
      with tempfile.TemporaryDirectory(prefix="realm_scann_") as scratch:
        directory = Path(scratch) / self.kind
        kept = dataclasses.replace(options, directory=directory)
        return self.build(blocks, kept)
    if blocks.num_blocks < self.brute_force_below:
      scann_files.write_brute_force(options.directory, vectors_of(blocks))
      return self.load(options.directory, blocks)
    return TreeBuilder(self, blocks, options).build(options.directory)

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> ScannIndex:
    """Reads what `build` wrote.

    Raises:
      IndexLoadError: ScaNN cannot read it, or it is of other blocks.
    """
    del mesh
    return scann_index.load(directory, blocks, threads=self.threads)


def given_tree(
  num_leaves: int,
  *,
  num_leaves_searched: int,
  num_reordered: int,
  reordering: str = "bfloat16",
  spherical: bool = False,
  soar_lambda: float = 0.0,
  avq_threshold: float = 0.0,
  anisotropic_threshold: float = 0.0,
  **settings: Any,
) -> ScannConfig:
  """A tree of which nothing is tried, and that is taken for what it finds.

  The same vectors make the same files, since no times are compared and nothing
  is taken over from the generation before.

  Args:
    num_leaves: as all that follow, of `ScannConfig`.
    num_leaves_searched: see there.
    num_reordered: see there.
    reordering: see there.
    spherical: see there.
    soar_lambda: see there.
    avq_threshold: see there.
    anisotropic_threshold: see there.
    **settings: others.
  """
  taken: dict[str, Any] = {
    "brute_force_below": 0,
    "below_target": True,
    "reuse": False,
  }
  return ScannConfig(
    num_leaves=num_leaves,
    num_leaves_searched=num_leaves_searched,
    num_reordered=num_reordered,
    reordering=reordering,
    spherical=spherical,
    soar_lambda=soar_lambda,
    avq_threshold=avq_threshold,
    anisotropic_threshold=anisotropic_threshold,
    **(taken | settings),
  )
