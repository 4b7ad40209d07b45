"""TPU slices: names, topologies and hosts on Google Kubernetes Engine (GKE)."""

import dataclasses
import math
import re

from launch.launch_flags import LaunchError

_CHIPS_PER_HOST = 4  # In every slice of several hosts.
_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
  *("8x8x8", "8x8x16", "8x16x16"),
)


@dataclasses.dataclass(frozen=True)
class Generation:
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

  @property
  def sizes(self) -> dict[str, str]:
    """Topology of each slice that has a size, by its name."""
    return {
      f"{self.size_name}-{chips_of(topology) * self.cores_per_chip}": topology
      for topology in self.topologies
    }


GENERATIONS = (
  Generation("v4", "v4", "tpu-v4-podslice", "ct4p-hightpu-", _CUBES, 2, (4,)),
  Generation(
    "v5e", "v5litepod", "tpu-v5-lite-podslice", "ct5lp-hightpu-", _SQUARES
  ),
  Generation(
    "v5p",
    "v5p",
    "tpu-v5p-slice",
    "ct5p-hightpu-",
    (*_CUBES, "16x16x16", "16x16x24"),
    2,
    (4,),
  ),
  Generation("v6e", "v6e", "tpu-v6e-slice", "ct6e-standard-", _SQUARES),
)


@dataclasses.dataclass(frozen=True)
class Slice:
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
    return chips_of(self.topology)

  @property
  def hosts(self) -> int:
    """Number of hosts, each of which runs one process of a job."""
    return self.chips // self.chips_per_host

  @property
  def one_host(self) -> "Slice":
    """Slice of one host, with as many chips as each host of this one."""
    topologies = self.generation.topologies
    [topology] = (t for t in topologies if chips_of(t) == self.chips_per_host)
    return Slice(self.generation, topology)

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


def chips_of(topology: str) -> int:
  """Returns the number of chips of a topology."""
  return math.prod(map(int, topology.split("x")))


def parse_slice(text: str) -> Slice:
  """Returns the slice that has a name.

  The name is `GENERATION-SIZE`, as in `v5litepod-64`, `v5e-64`, `v6e-8` and
  `v5p-128`, or `GENERATION:TOPOLOGY`, as in `v5p:4x4x8`. Of the topologies
  without a size, GKE refuses those that it does not have.

  Raises:
    LaunchError: There is no such slice.
  """
  found = re.fullmatch(r"(\w+)(?:-(\d+)|:([1-9]\d*(?:x[1-9]\d*)+))", text)
  if found is None:
    raise LaunchError(
      f"{text!r} is no TPU slice; write GENERATION-SIZE, as in v5litepod-64, "
      "or GENERATION:TOPOLOGY, as in v5p:4x4x8"
    )
  name, size, topology = found.groups()
  for generation in GENERATIONS:
    if name in (generation.name, generation.size_name):
      break
  else:
    names = ", ".join(generation.name for generation in GENERATIONS)
    raise LaunchError(f"{text!r}: {name} is none of the TPUs {names}")
  known = generation.topologies
  if size is not None:
    topology = generation.sizes.get(f"{generation.size_name}-{size}")
  elif topology not in known and (
    topology.count("x") != known[0].count("x")
    or chips_of(topology) % _CHIPS_PER_HOST
  ):
    topology = None
  if topology is None:
    unit = {1: "chips", 2: "TensorCores, two a chip"}[generation.cores_per_chip]
    raise LaunchError(
      f"{text!r}: {generation.name} has no such slice; its sizes are numbers "
      f"of {unit}: {', '.join(generation.sizes)}; topologies are written as "
      f"in {', '.join(known)}"
    )
  return Slice(generation, topology)
