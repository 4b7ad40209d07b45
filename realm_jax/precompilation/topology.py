"""The chips of a TPU slice that need not exist, from libtpu alone."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
from jax.experimental import topologies

from realm_jax.errors import RealmError
from realm_jax.launch.slices import parse_slice

# Where `make env` installs libtpu: beside the packages, because jax would look
# for TPUs wherever it can import it.
LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
# What libtpu looks for on a TPU machine, and must not miss elsewhere. Without
# the last one a second process that loads it ends at its lock file.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice of a TPU; the cores of a v4 or v5p act together as one device.

  Attributes:
    name: Name, such as `v5e:8x8`.
    devices: One device for each chip.
    memory_bytes: Memory of a chip that a program may use, as libtpu 0.0.42.1
      says when one does not fit.
    peak_flops: Floating-point operations of a chip in a second, in bfloat16
      products, by Google's pages (docs.cloud.google.com/tpu/docs/v4, v5e,
      v5p-training and v6e).
    memory_bandwidth: Bytes in a second, to and from a chip's memory, likewise.
  """

  name: str
  devices: tuple[jax.Device, ...]
  memory_bytes: int
  peak_flops: float
  memory_bandwidth: float


# Memory, FLOP/s and bandwidth of a chip, by generation.
_LIMITS: Mapping[str, tuple[int, float, float]] = {
  "v4": (int(30.75 * 2**30), 275e12, 1200e9),
  "v5e": (int(15.75 * 2**30), 197e12, 819e9),
  "v5p": (int(95.74 * 2**30), 459e12, 2765e9),
  "v6e": (int(31.25 * 2**30), 918e12, 1638e9),
}


def open_topology(name: str) -> Topology:
  """Returns the devices of a slice, for which programs can be compiled.

  It must be called before jax looks for devices, and keeps jax on CPUs. The
  name is one that `parse_slice` takes, such as `v5e:8x8`.

  Raises:
    RealmError: There is no such slice, or no libtpu that knows it.
  """
  generation, chips = parse_slice(name)
  # Names the library to jax, and what the library needs without a TPU.
  path = Path(os.environ.setdefault("TPU_LIBRARY_PATH", str(LIBRARY)))
  if not path.is_file():
    raise RealmError(
      f"libtpu is not there (TPU_LIBRARY_PATH={path}): `make env` installs it, "
      "or name another one: TPU_LIBRARY_PATH=…/libtpu.so"
    )
  for variable, value in _ENVIRONMENT.items():
    os.environ.setdefault(variable, value)
  # jax would look for the chips of a TPU machine, where there is a libtpu.
  jax.config.update("jax_platforms", "cpu")
  # The two cores of a v4 chip are one device only where the chip says so.
  settings = {"chip_config_name": "megacore"} if generation == "v4" else {}
  name = f"{generation}:{chips}"
  try:
    found = topologies.get_topology_desc(name, "tpu", **settings)
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    raise RealmError(
      f"libtpu knows no slice {name!r} ({str(error).splitlines()[0]})"
    ) from error
  return Topology(name, tuple(found.devices), *_LIMITS[generation])
