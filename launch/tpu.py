"""Names of TPU slices: `v5litepod-64`, `v6e-8` or `v5p:4x4x8`."""

import re

from launch.jobs import LaunchError

_GENERATIONS = {"v5litepod": "v5e"}
_FLAT = ("v5e", "v6e")


def parse_tpu(text: str) -> tuple[str, str]:
  """Returns the generation and the topology of a slice.

  `GENERATION:TOPOLOGY` names both. `GENERATION-CHIPS` is for v5e and v6e,
  whose slices are two-dimensional and as square as the number of chips allows,
  as in the cloud's own list (64 chips are 8x8, and 32 are 4x8).

  Raises:
    LaunchError: The name has neither form.
  """
  name, is_topology, topology = text.partition(":")
  if is_topology and re.fullmatch(r"\d+(x\d+){1,2}", topology):
    return _GENERATIONS.get(name, name), topology
  name, _, size = text.partition("-")
  generation = _GENERATIONS.get(name, name)
  if generation in _FLAT and size.isdecimal():
    chips = int(size)
    if 0 < chips <= 256 and chips.bit_count() == 1:
      height = 1 << (chips.bit_length() - 1) // 2
      return generation, f"{height}x{chips // height}"
  raise LaunchError(
    f"{text!r} is no TPU slice; write GENERATION:TOPOLOGY, as in v5p:4x4x8, "
    "or for v5e and v6e the number of chips, as in v5litepod-64"
  )
