"""TPU slices: names, topologies and hosts on Google Kubernetes Engine (GKE)."""

import math
import re
from typing import NamedTuple

from realm_jax.errors import RealmError

# GKE's names of a generation's slices and machine types; the suffix of a
# machine type, such as `4t`, has the number of chips.
_GENERATIONS = {
  "v4": ("tpu-v4-podslice", "ct4p-hightpu"),
  "v5e": ("tpu-v5-lite-podslice", "ct5lp-hightpu"),
  "v5p": ("tpu-v5p-slice", "ct5p-hightpu"),
  "v6e": ("tpu-v6e-slice", "ct6e-standard"),
}
# Topologies with a size. v4 and v5p count TensorCores, two on each chip; v5e
# and v6e count chips.
_SQUARES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"
_CUBES_OF_V5P = f"{_CUBES} 16x16x16 16x16x24"


class Slice(NamedTuple):
  """A TPU slice, whose chips are connected with each other.

  Attributes:
    generation: Generation of its chips, such as `v5e`.
    topology: Chips in each dimension, as in `8x8`.
  """

  generation: str
  topology: str

  @property
  def accelerator(self) -> str:
    """GKE's name of the slices of this generation."""
    return _GENERATIONS[self.generation][0]

  @property
  def chips(self) -> int:
    """Number of chips."""
    return math.prod(map(int, self.topology.split("x")))

  @property
  def chips_per_host(self) -> int:
    """Number of chips on each host: 4 in every slice with several hosts."""
    return self.chips if self.topology in ("1x1", "2x2", "2x4") else 4

  @property
  def hosts(self) -> int:
    """Number of hosts; each runs one process of a job."""
    return self.chips // self.chips_per_host

  def __str__(self) -> str:
    """Hosts and machine type, for `--dry_run`."""
    machine = f"{_GENERATIONS[self.generation][1]}-{self.chips_per_host}t"
    name = f"{self.generation} {self.topology}"
    return f"{name}: {self.chips} chips on {self.hosts} × {machine}"


def slices_of(generation: str) -> dict[str, Slice]:
  """Returns the slices by size, the smallest first."""
  cubes = {"v4": _CUBES, "v5p": _CUBES_OF_V5P}
  topologies = cubes.get(generation, _SQUARES).split()
  cores = 2 if generation in cubes else 1
  slices = [Slice(generation, topology) for topology in topologies]
  return {str(one.chips * cores): one for one in slices}


def parse_slice(text: str) -> Slice:
  """Returns the slice with a name.

  The name is `GENERATION-SIZE`, as in `v5litepod-64`, `v5e-64`, `v6e-8` and
  `v5p-128`, or `GENERATION:TOPOLOGY`, as in `v5p:4x4x8`. GKE and libtpu reject
  topologies that do not exist.

  Raises:
    RealmError: There is no such slice.
  """
  match = re.fullmatch(r"(\w+)([-:])(\d+(?:x\d+){0,2})", text)
  name = match[1].replace("v5litepod", "v5e") if match else ""
  if match is None or name not in _GENERATIONS:
    raise RealmError(
      f"{text!r} is not a TPU slice of {', '.join(_GENERATIONS)}; write "
      "GENERATION-SIZE, as in v5litepod-64, or GENERATION:TOPOLOGY, as in "
      "v5p:4x4x8"
    )
  by_size = slices_of(name)
  some = [*by_size.values()][-1]
  if match[2] == ":" and match[3].count("x") == some.topology.count("x"):
    return Slice(name, match[3])
  if match[2] == ":" or match[3] not in by_size:
    raise RealmError(
      f"{text!r}: {name} has no such slice; its sizes "
      f"are {', '.join(by_size)}, and its topologies as {some.topology}"
    )
  return by_size[match[3]]
