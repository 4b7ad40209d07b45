"""The parameters that embed queries for a generation's vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from realm_jax.generations.store.manifest import DamagedGenerationError

PATH = "query_tower/parameters.safetensors"


def save(directory: Path, params: Mapping[str, Any]) -> None:
  """Writes the tree's arrays by their path; the format holds no code."""
  flat = traverse_util.flatten_dict(params, sep="/")
  path = directory / PATH
  path.parent.mkdir()
  # `save_file` would not say that the disk is full with an `OSError`.
  path.write_bytes(
    safetensors.numpy.save(
      {name: np.asarray(array, order="C") for name, array in flat.items()}
    )
  )


def load(directory: Path) -> dict[str, Any]:
  """The tree of numpy arrays that `save` wrote.

  Raises:
    DamagedGenerationError: the file is missing or damaged.
  """
  path = directory / PATH
  try:
    flat = safetensors.numpy.load_file(path)
  except (OSError, safetensors.SafetensorError) as error:
    raise DamagedGenerationError(f"{path} cannot be read: {error}") from error
  return traverse_util.unflatten_dict(flat, sep="/")
