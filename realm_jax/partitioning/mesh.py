"""The device mesh: batches over `data` and `fsdp`, widths over `model`.

Parameters and the optimizer's state are divided over `fsdp` and `model`, and
the vectors of an exact index over all three axes.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

DATA_AXIS = "data"
FSDP_AXIS = "fsdp"
MODEL_AXIS = "model"
# The axes that divide the rows of a batch into groups.
BATCH_AXES = (DATA_AXIS, FSDP_AXIS)


def make_mesh(
  *,
  fsdp: int = 1,
  model_parallelism: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns a (data, fsdp, model) mesh over all devices of all processes.

  Raises:
    ValueError: The sizes do not divide the number of devices.
  """
  grid = np.asarray(jax.devices() if devices is None else devices)
  sizes = (fsdp, model_parallelism)
  if min(sizes) < 1 or grid.size % (fsdp * model_parallelism):
    raise ValueError(
      f"fsdp={fsdp} and model_parallelism={model_parallelism} do not divide "
      f"the {grid.size} devices; choose divisors"
    )
  axes = (DATA_AXIS, FSDP_AXIS, MODEL_AXIS)
  return Mesh(grid.reshape(-1, *sizes), axes)
