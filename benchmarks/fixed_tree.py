"""Settings of ScaNN's trees that are given and not chosen by measuring."""

import dataclasses
from typing import Any

from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.indexes.scann.settings import Structure


def fixed_tree(num_leaves: int, **settings: Any) -> ScannConfig:
  """Returns the settings of a tree that is not tuned, whatever its recall.

  With `num_leaves_searched` and `num_reordered` among the settings, no times
  are measured and the previous generation is not used, so the same vectors
  give the same files.
  """
  values: dict[str, Any] = dataclasses.asdict(Structure(num_leaves))
  values |= {"brute_force_below": 0, "below_target": True, "reuse": False}
  return ScannConfig(**(values | settings))
