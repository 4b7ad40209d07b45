"""What a chip of each TPU generation has, and what it does in a second.

Peaks, bandwidths, cores and matrix units are those of Google's pages
(docs.cloud.google.com/tpu/docs/v4, v5e, v5p-training and v6e). These give links
in both directions together, of which half is what a chip sends; those of v4,
six of 50 GB/s, are in Jouppi et al. 2023. The memory that a program may use is
what libtpu 0.0.42.1 says when a program does not fit. The clock follows from
the peak: a matrix unit of width w does w² products and sums in a cycle.
"""

import dataclasses
from collections.abc import Mapping

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """One chip, which is one device: the cores of a v4 or v5p act together.

  Attributes:
    name: Name of the generation, as in `v5e`.
    memory_bytes: Memory that a program may use.
    peak_flops: Floating-point operations in a second, in bfloat16 products.
    memory_bandwidth: Bytes in a second, to and from memory.
    link_bandwidth: Bytes in a second that a chip sends to all its neighbours
      together.
    cores: TensorCores of the chip.
    matrix_units: Matrix units of each core.
    matrix_width: Rows and columns of a matrix unit.
  """

  name: str
  memory_bytes: int
  peak_flops: float
  memory_bandwidth: float
  link_bandwidth: float
  cores: int
  matrix_units: int
  matrix_width: int

  @property
  def clock(self) -> float:
    """Cycles in a second."""
    units = self.cores * self.matrix_units
    return self.peak_flops / (2 * units * self.matrix_width**2)


CHIPS: Mapping[str, Chip] = {
  chip.name: chip
  for chip in (
    Chip(
      name="v4",
      memory_bytes=int(30.75 * _GIB),
      peak_flops=275e12,
      memory_bandwidth=1200e9,
      link_bandwidth=300e9,
      cores=2,
      matrix_units=4,
      matrix_width=128,
    ),
    Chip(
      name="v5e",
      memory_bytes=int(15.75 * _GIB),
      peak_flops=197e12,
      memory_bandwidth=819e9,
      link_bandwidth=200e9,
      cores=1,
      matrix_units=4,
      matrix_width=128,
    ),
    Chip(
      name="v5p",
      memory_bytes=int(95.74 * _GIB),
      peak_flops=459e12,
      memory_bandwidth=2765e9,
      link_bandwidth=600e9,
      cores=2,
      matrix_units=4,
      matrix_width=128,
    ),
    Chip(
      name="v6e",
      memory_bytes=int(31.25 * _GIB),
      peak_flops=918e12,
      memory_bandwidth=1638e9,
      link_bandwidth=400e9,
      cores=1,
      matrix_units=2,
      matrix_width=256,
    ),
  )
}
