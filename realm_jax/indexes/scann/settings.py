"""The settings of a ScaNN index, and the structure of its tree."""

import dataclasses
from typing import Literal

from realm_jax.indexes.protocol import HOST_SETTING
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFraction,
  PositiveInt,
  require_valid,
)

Reordering = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Structure:
  """The structure of a tree: the settings of `ScannSettings` that define it."""

  num_leaves: PositiveInt
  dims_per_code: PositiveInt = 2
  reordering: Reordering = "bfloat16"

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class ScannSettings:
  """Settings of a tree of leaves, quantized scores, and reordering.

  A setting that is None is chosen by measuring. The number of leaves is chosen
  once, on a sample of the corpus, for the first generation; later ones reuse it
  while it meets the recall target. How much of the tree is searched is chosen
  for each generation. The choices depend on measured times, so a run
  that must repeat bit for bit from its checkpoints alone sets all of them, and
  turns `reuse` off.

  Attributes:
    recall_target: Share of the `recall_k` best blocks to find. Choices aim a
      tenth of the rest higher, for queries other than the measured ones; what
      is published has to meet the target itself.
    recall_k: k of that recall.
    below_target: Whether an index below the target is accepted.
    builder: Builder of the files, `own` or `stock`, which is ScaNN's public
      one. It needs all vectors in memory, in float32, and tries no numbers of
      leaves; see the docstring of `realm_jax.indexes.scann`.
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
      per leaf, at least 131,072.
    tuning_sample: Number of vectors on which numbers of leaves are tried.
    reuse: Whether leaves and codebooks of the previous generation are reused
      while they meet the target.
    seed: Seed of samples and of the first centroids.
    threads: Threads for searching, a setting of the host that no manifest
      stores; None uses every core.
  """

  recall_target: PositiveFraction = 0.95
  recall_k: PositiveInt = 8
  below_target: bool = False
  builder: Literal["own", "stock"] = "own"
  brute_force_below: NonNegativeInt = 10_000
  num_leaves: PositiveInt | None = None
  num_leaves_searched: PositiveInt | None = None
  num_reordered: PositiveInt | None = None
  reordering: Reordering = "bfloat16"
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

  def structure(self, num_leaves: int) -> Structure:
    """Returns the structure, with this number of leaves if none is set."""
    if self.num_leaves is not None:
      num_leaves = self.num_leaves
    return Structure(num_leaves, self.dims_per_code, self.reordering)
