"""Settings of ScaNN's trees that are given and not chosen by measuring."""

from typing import Any

from realm_jax.indexes.scann.config import ScannConfig


def fixed_tree(num_leaves: int, **settings: Any) -> ScannConfig:
  """Returns the settings of a tree that is not tuned, whatever its recall.

  With `num_leaves_searched` and `num_reordered` among the settings, the same
  vectors give the same index.
  """
  fixed: dict[str, Any] = {"brute_force_below": 0, "below_target": True}
  return ScannConfig(num_leaves=num_leaves, **(fixed | settings))
