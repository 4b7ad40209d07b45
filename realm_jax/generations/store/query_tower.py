"""The parameters of the query tower that belongs to a generation's vectors."""

from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.models.parameters import Params

PATH = "query_tower/parameters.safetensors"


def save(directory: Path, params: Params) -> None:
  """Writes the arrays by their path in the tree; the format holds no code."""
  flat = traverse_util.flatten_dict(params, sep="/")
  path = directory / PATH
  path.parent.mkdir()
  # `save_file` does not report a full disk as an `OSError`.
  path.write_bytes(
    safetensors.numpy.save(
      {name: np.asarray(array, order="C") for name, array in flat.items()}
    )
  )


def load(directory: Path) -> Params:
  """Reads the tree that `save` wrote, as numpy arrays.

  Raises:
    DamagedGenerationError: The file is missing or damaged.
  """
  path = directory / PATH
  try:
    flat = safetensors.numpy.load_file(path)
  except (OSError, safetensors.SafetensorError) as error:
    raise DamagedGenerationError(f"{path} cannot be read: {error}") from error
  return traverse_util.unflatten_dict(flat, sep="/")
