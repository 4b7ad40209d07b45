"""The devices of a TPU slice that need not exist, from libtpu alone."""

import dataclasses
import os
import re
from pathlib import Path

import jax
from jax.experimental import topologies

from realm_jax.precompilation.chips import CHIPS, Chip

# What libtpu looks for on a TPU machine, and must not miss elsewhere. Without
# the last one a second process that loads it ends at its lock file.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_LIBRARY = "TPU_LIBRARY_PATH"
# The two cores of a v4 chip are one device only where the chip says so.
_CHIP_CONFIGS = {"v4": "megacore"}
# Chips of a host in a slice of several hosts.
_HOSTS = {"v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}
_EXAMPLES = {
  "v4": "v4:4x4x4",
  "v5e": "v5e:8x8",
  "v5p": "v5p:4x4x4",
  "v6e": "v6e:8x8",
}


class TopologyError(ValueError):
  """There is no such slice, or no libtpu that knows it."""


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice of a TPU.

  Attributes:
    name: Name, such as `v5e:8x8`.
    chip: What each chip has, and its peak rates.
    devices: One device for each chip.
    host: The devices of a slice of one host, or of this slice if it has no
      more. libtpu compiles for no part of a slice.
    compiler: Name of the library that compiles for them, another for each
      version.
  """

  name: str
  chip: Chip
  devices: tuple[jax.Device, ...]
  host: tuple[jax.Device, ...]
  compiler: str


def open_topology(name: str, *, library: Path | None = None) -> Topology:
  """Returns the devices of a slice, for which programs can be compiled.

  It must be called before jax looks for devices, and keeps jax on CPUs.

  Args:
    name: Generation and chips in each dimension, as in `v5e:8x8`.
    library: File libtpu.so; TPU_LIBRARY_PATH goes before it.

  Raises:
    TopologyError: There is no such slice, or no libtpu.
  """
  generation, _, sides = name.partition(":")
  if generation not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", sides):
    raise TopologyError(
      f"topology={name!r} is no slice; want one of {', '.join(CHIPS)} and its "
      f"chips in each dimension, as in {', '.join(_EXAMPLES.values())}"
    )
  example = _EXAMPLES[generation]
  if sides.count("x") != example.count("x"):
    raise TopologyError(
      f"topology={name!r} is no slice: chips of {generation} are laid out in "
      f"{example.count('x') + 1} dimensions, as in {example}"
    )
  compiler = _load(library)
  try:
    devices = host = _devices(generation, name)
    if len({device.process_index for device in devices}) > 1:
      host = _devices(generation, f"{generation}:{_HOSTS[generation]}")
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    raise TopologyError(
      f"libtpu knows no slice {name!r} ({str(error).splitlines()[0]}); want "
      f"chips in each dimension as in {example}"
    ) from error
  return Topology(name, CHIPS[generation], devices, host, compiler)


def _devices(generation: str, name: str) -> tuple[jax.Device, ...]:
  settings = {}
  if generation in _CHIP_CONFIGS:
    settings["chip_config_name"] = _CHIP_CONFIGS[generation]
  found = topologies.get_topology_desc(
    platform="tpu", topology_name=name, **settings
  )
  return tuple(found.devices)


def _load(library: Path | None) -> str:
  """Names the library to jax, and what the library needs without a TPU.

  Returns another text for each version of the library.
  """
  given = os.environ.get(_LIBRARY)
  path = Path(given) if given else library
  if path is None or not path.is_file():
    where = f"{_LIBRARY}={given}" if given else str(path)
    raise TopologyError(
      f"libtpu is not there ({where}): `make env` installs it, or name another "
      f"one: {_LIBRARY}=…/libtpu.so"
    )
  os.environ[_LIBRARY] = str(path)
  for variable, value in _ENVIRONMENT.items():
    os.environ.setdefault(variable, value)
  # jax would look for the chips of a TPU machine, where there is a libtpu.
  jax.config.update("jax_platforms", "cpu")
  status = path.stat()
  return f"{path.name} {status.st_size} {status.st_mtime_ns}"
