"""The chips of a TPU slice, from libtpu, without the hardware."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
from jax.experimental import topologies

from realm_jax.errors import RealmError
from realm_jax.launch.slices import parse_slice

# Path where `make env` installs libtpu, outside of the packages, because jax
# would look for TPUs if it could import libtpu.
LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
# Variables that libtpu expects, as on a TPU machine. Without the last one, a
# second process that loads libtpu fails at its lock file.
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
    memory_bytes: Memory of a chip that a program may use, from error messages
      of libtpu 0.0.42.1.
    peak_flops: Floating-point operations per second of a chip, for bfloat16
      products, from Google's pages (docs.cloud.google.com/tpu/docs/v4, v5e,
      v5p-training and v6e).
    memory_bandwidth: Bytes per second to and from a chip's memory, from the
      same pages.
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

  Call this before jax looks for devices; it keeps jax on CPUs. The name is as
  for `parse_slice`, such as `v5e:8x8`.

  Raises:
    RealmError: There is no such slice, or no libtpu that knows it.
  """
  generation, chips = parse_slice(name)
  # Sets the library's path for jax, and variables that it needs without a TPU.
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
  # This setting makes the two cores of a v4 chip one device.
  settings = {"chip_config_name": "megacore"} if generation == "v4" else {}
  name = f"{generation}:{chips}"
  try:
    description = topologies.get_topology_desc(name, "tpu", **settings)
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    raise RealmError(
      f"libtpu knows no slice {name!r} ({str(error).splitlines()[0]})"
    ) from error
  return Topology(name, tuple(description.devices), *_LIMITS[generation])
