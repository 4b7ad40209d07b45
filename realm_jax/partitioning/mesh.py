"""The device mesh: batches and the index over `data`, widths over `model`."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

DATA_AXIS = "data"
MODEL_AXIS = "model"


def make_mesh(
  *, model_parallelism: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Returns a (data, model) mesh over all devices of all processes.

  Raises:
    ValueError: `model_parallelism` does not divide the number of devices.
  """
  grid = np.asarray(jax.devices() if devices is None else devices)
  if model_parallelism < 1 or grid.size % model_parallelism:
    raise ValueError(
      f"model_parallelism={model_parallelism} does not divide the "
      f"{grid.size} devices; choose a divisor"
    )
  return Mesh(grid.reshape(-1, model_parallelism), (DATA_AXIS, MODEL_AXIS))
