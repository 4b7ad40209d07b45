"""How the item `loop` of a checkpoint records the generation in use."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import PyTree

_NO_GENERATION = -1


def generation_record(generation: int | None) -> dict[str, np.int64]:
  """Returns the entry of the item; None is for a stage without an index."""
  step = _NO_GENERATION if generation is None else generation
  return {"generation": np.int64(step)}


def recorded_generation(item: Mapping[str, PyTree]) -> int | None:
  """Returns the generation that an item records."""
  step = int(item["generation"])
  return None if step == _NO_GENERATION else step
