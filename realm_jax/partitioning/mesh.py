"""The device mesh: batches and the index over `data`, widths over `model`."""

import jax
import numpy as np
from jax.sharding import Mesh

DATA_AXIS = "data"
MODEL_AXIS = "model"


def make_mesh(*, model_parallelism: int = 1, devices=None) -> Mesh:
  """A (data, model) mesh over all devices of all processes.

  Raises:
    ValueError: `model_parallelism` does not divide the number of devices.
  """
  devices = np.asarray(jax.devices() if devices is None else devices)
  if model_parallelism < 1 or devices.size % model_parallelism:
    raise ValueError(
      f"model_parallelism={model_parallelism} does not divide the "
      f"{devices.size} devices; choose a divisor"
    )
  return Mesh(devices.reshape(-1, model_parallelism), (DATA_AXIS, MODEL_AXIS))
