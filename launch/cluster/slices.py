"""TPU slices: names, topologies and hosts on Google Kubernetes Engine (GKE)."""

import dataclasses
import math
import re

from launch.errors import LaunchError

_CHIPS_PER_HOST = 4  # In every slice of several hosts.
_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
  *("8x8x8", "8x8x16", "8x16x16"),
)
# From this number of chips on, a slice consists of whole cubes of 4x4x4.
_CUBE = 64


@dataclasses.dataclass(frozen=True)
class Generation:
  """A generation of TPUs.

  Attributes:
    name: Short name, such as `v5e`.
    size_name: Name before the size, as in `v5litepod-64`.
    accelerator: GKE's name of its slices.
    machine_type: GKE's machine type, without its last part: `4t` has 4 chips.
    cores_per_chip: Number by which a size counts a chip. Sizes of v4 and v5p
      are TensorCores, two a chip; those of v5e and v6e are chips.
    single_host: Numbers of chips of slices that have one host.
    topologies: Topologies that have a size.
    max_chips: Chips of the largest slice.
  """

  name: str
  size_name: str
  accelerator: str
  machine_type: str
  cores_per_chip: int
  single_host: tuple[int, ...]
  topologies: tuple[str, ...]
  max_chips: int

  @property
  def names(self) -> list[str]:
    """Names of the slices that have a size, the smallest first."""
    return [
      f"{self.size_name}-{chips_of(topology) * self.cores_per_chip}"
      for topology in self.topologies
    ]


GENERATIONS = (
  Generation(
    name="v4",
    size_name="v4",
    accelerator="tpu-v4-podslice",
    machine_type="ct4p-hightpu-",
    cores_per_chip=2,
    single_host=(4,),
    topologies=_CUBES,
    max_chips=4096,
  ),
  Generation(
    name="v5e",
    size_name="v5litepod",
    accelerator="tpu-v5-lite-podslice",
    machine_type="ct5lp-hightpu-",
    cores_per_chip=1,
    single_host=(1, 4, 8),
    topologies=_SQUARES,
    max_chips=256,
  ),
  Generation(
    name="v5p",
    size_name="v5p",
    accelerator="tpu-v5p-slice",
    machine_type="ct5p-hightpu-",
    cores_per_chip=2,
    single_host=(4,),
    topologies=(*_CUBES, "16x16x16", "16x16x24"),
    max_chips=6144,
  ),
  Generation(
    name="v6e",
    size_name="v6e",
    accelerator="tpu-v6e-slice",
    machine_type="ct6e-standard-",
    cores_per_chip=1,
    single_host=(1, 4, 8),
    topologies=_SQUARES,
    max_chips=256,
  ),
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
  `v5p-128`, or `GENERATION:TOPOLOGY`, as in `v5p:4x4x8`.

  Raises:
    LaunchError: There is no such slice.
  """
  found = re.fullmatch(r"(\w+)([-:])([\dx]+)", text)
  if found is None:
    raise LaunchError(
      f"{text!r} is no TPU slice; write GENERATION-SIZE, as in v5litepod-64, "
      "or GENERATION:TOPOLOGY, as in v5p:4x4x8"
    )
  name, separator, size = found.groups()
  generation = _generation(name, text)
  known = generation.topologies
  if separator == ":" and _is_topology(generation, size):
    return Slice(generation, size)
  if separator == "-" and size.isdecimal():
    for topology in known:
      if chips_of(topology) * generation.cores_per_chip == int(size):
        return Slice(generation, topology)
  unit = {1: "chips", 2: "TensorCores, two a chip"}[generation.cores_per_chip]
  raise LaunchError(
    f"{text!r}: {generation.name} has no such slice; its sizes are numbers of "
    f"{unit}: {', '.join(generation.names)}; its topologies are "
    f"{', '.join(known)}" + _other_topologies(generation)
  )


def _generation(name: str, text: str) -> Generation:
  for generation in GENERATIONS:
    if name in (generation.name, generation.size_name):
      return generation
  names = ", ".join(generation.name for generation in GENERATIONS)
  raise LaunchError(f"{text!r}: {name} is none of the TPUs {names}")


def _is_topology(generation: Generation, topology: str) -> bool:
  if topology in generation.topologies:
    return True
  if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", topology):
    return False
  sides = [int(side) for side in topology.split("x")]
  return (
    generation.topologies[0].count("x") == 2
    and all(side % 4 == 0 for side in sides)
    and sides == sorted(sides)
    and _CUBE <= math.prod(sides) <= generation.max_chips
  )


def _other_topologies(generation: Generation) -> str:
  if generation.topologies[0].count("x") != 2:
    return ""
  return (
    ", and AxBxC with A ≤ B ≤ C, each a multiple of 4, of at most "
    f"{generation.max_chips} chips"
  )
