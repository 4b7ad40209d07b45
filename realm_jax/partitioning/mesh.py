"""The device mesh: batches over `data` and `fsdp`, widths over `model`.

Parameters and optimizer state are sharded over `fsdp` and `model`, and the
vectors of an exact index over all three axes.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from realm_jax.errors import RealmError

DATA_AXIS = "data"
FSDP_AXIS = "fsdp"
MODEL_AXIS = "model"
# Inner axes communicate more, so `model` comes last.
MESH_AXES = (DATA_AXIS, FSDP_AXIS, MODEL_AXIS)
# Axes over which the rows of a batch are sharded, in groups.
BATCH_AXES = (DATA_AXIS, FSDP_AXIS)


def make_mesh(
  *,
  fsdp: int = 1,
  model_parallelism: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns a (data, fsdp, model) mesh over all devices of all processes.

  On TPUs the axes follow the topology, and only `data` crosses slices.
  Elsewhere the devices keep the order of `jax.devices()`, process by process,
  so that a `model` axis stays within a host if it fits.

  Raises:
    ValueError: The sizes do not divide the number of devices, or of devices in
      a slice.
  """
  devices = jax.devices() if devices is None else devices
  slices = 1
  if devices[0].platform == "tpu":
    # On GPUs, `slice_index` numbers NVLink domains, which any axis may cross.
    slices = len({getattr(device, "slice_index", 0) for device in devices})
  parts = fsdp * model_parallelism
  if min(fsdp, model_parallelism) < 1 or len(devices) // slices % parts:
    within = f" in each of {slices} slices" if slices > 1 else ""
    raise RealmError(
      f"fsdp={fsdp} × model_parallelism={model_parallelism} = {parts} does not "
      f"divide the {len(devices) // slices} devices{within}; change FSDP or "
      "MODEL_PARALLELISM"
    )
  sizes = (len(devices) // parts, fsdp, model_parallelism)
  if devices[0].platform != "tpu":
    arranged = np.asarray(devices).reshape(sizes)
  elif slices == 1:
    # Splits physical axes only if necessary.
    arranged = mesh_utils.create_device_mesh(
      sizes, devices, allow_split_physical_axes=True
    )
  else:
    arranged = mesh_utils.create_hybrid_device_mesh(
      (sizes[0] // slices, *sizes[1:]),
      (slices, 1, 1),
      devices,
      allow_split_physical_axes=True,
    )
  axis_types = (AxisType.Auto,) * len(MESH_AXES)
  return Mesh(arranged, MESH_AXES, axis_types=axis_types)
