"""TPU slices: names, topologies and hosts on Google Kubernetes Engine (GKE)."""

import math
import re
from typing import NamedTuple

from launch.launch_flags import LaunchError

_CHIPS_PER_HOST = 4  # In every slice of several hosts.
_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
  *("8x8x8", "8x8x16", "8x16x16"),
)


class Generation(NamedTuple):
  """A generation of TPUs.

  Attributes:
    name: Short name, such as `v5e`.
    size_name: Name before the size, as in `v5litepod-64`.
    accelerator: GKE's name of its slices.
    machine_type: GKE's machine type, without its last part: `4t` has 4 chips.
    topologies: Topologies that have a size.
    cores_per_chip: Number by which a size counts a chip. Sizes of v4 and v5p
      are TensorCores, two a chip; those of v5e and v6e are chips.
    single_host: Numbers of chips of slices that have one host.
  """

  name: str
  size_name: str
  accelerator: str
  machine_type: str
  topologies: tuple[str, ...]
  cores_per_chip: int = 1
  single_host: tuple[int, ...] = (1, 4, 8)


_V5P_CUBES = (*_CUBES, "16x16x16", "16x16x24")
GENERATIONS = (
  Generation("v4", "v4", "tpu-v4-podslice", "ct4p-hightpu-", _CUBES, 2, (4,)),
  Generation(
    "v5e", "v5litepod", "tpu-v5-lite-podslice", "ct5lp-hightpu-", _SQUARES
  ),
  Generation(
    "v5p", "v5p", "tpu-v5p-slice", "ct5p-hightpu-", _V5P_CUBES, 2, (4,)
  ),
  Generation("v6e", "v6e", "tpu-v6e-slice", "ct6e-standard-", _SQUARES),
)


class Slice(NamedTuple):
  """A TPU slice, whose chips are connected with each other.

  Attributes:
    generation: Generation of its chips.
    topology: Chips in each dimension, as in `8x8`.
  """

  generation: Generation
  topology: str

  @property
  def chips(self) -> int:
    """Number of chips."""
    return math.prod(map(int, self.topology.split("x")))

  @property
  def hosts(self) -> int:
    """Number of hosts, each of which runs one process of a job."""
    return self.chips // self.chips_per_host

  @property
  def one_host(self) -> "Slice":
    """Slice of one host, with as many chips as each host of this one."""
    slices = [Slice(self.generation, t) for t in self.generation.topologies]
    return next(one for one in slices if one.chips == self.chips_per_host)

  @property
  def chips_per_host(self) -> int:
    """Number of chips that each host has."""
    alone = self.chips in self.generation.single_host
    return self.chips if alone else _CHIPS_PER_HOST

  @property
  def machine_type(self) -> str:
    """GKE's machine type of the hosts."""
    return f"{self.generation.machine_type}{self.chips_per_host}t"

  def __str__(self) -> str:
    chips = "1 chip" if self.chips == 1 else f"{self.chips} chips"
    hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
    return f"{self.generation.name} {self.topology}: {chips} on {hosts}"


def parse_slice(text: str) -> Slice:
  """Returns the slice that has a name.

  The name is `GENERATION-SIZE`, as in `v5litepod-64`, `v5e-64`, `v6e-8` and
  `v5p-128`, or `GENERATION:TOPOLOGY`, as in `v5p:4x4x8`. Of the topologies
  without a size, GKE refuses those that it does not have.

  Raises:
    LaunchError: There is no such slice.
  """
  separator = ":" if ":" in text else "-"
  name, _, of_slice = text.partition(separator)
  for generation in GENERATIONS:
    if name in (generation.name, generation.size_name):
      break
  else:
    names = ", ".join(generation.name for generation in GENERATIONS)
    raise LaunchError(
      f"{text!r} is none of the TPU slices of {names}; write GENERATION-SIZE, "
      "as in v5litepod-64, or GENERATION:TOPOLOGY, as in v5p:4x4x8"
    )
  slices = [Slice(generation, t) for t in generation.topologies]
  by_size = {str(one.chips * generation.cores_per_chip): one for one in slices}
  dimensions = "x".join([r"[1-9]\d*"] * (slices[0].topology.count("x") + 1))
  found = by_size.get(of_slice) if separator == "-" else None
  if separator == ":" and re.fullmatch(dimensions, of_slice):
    found = Slice(generation, of_slice)
  if found is None or found.chips != found.hosts * found.chips_per_host:
    unit = {1: "chips", 2: "TensorCores, two a chip"}[generation.cores_per_chip]
    raise LaunchError(
      f"{text!r}: {generation.name} has no such slice; its sizes are numbers "
      f"of {unit}: {', '.join(by_size)}; topologies are written as in "
      f"{', '.join(generation.topologies)}"
    )
  return found
