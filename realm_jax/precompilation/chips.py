"""What a chip of each TPU generation has, and its peak rates.

Peaks and bandwidths are those of Google's pages
(docs.cloud.google.com/tpu/docs/v4, v5e, v5p-training and v6e). The memory that
a program may use is what libtpu 0.0.42.1 says when a program does not fit.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Chip:
  """One chip, which is one device: the cores of a v4 or v5p act together.

  Attributes:
    memory_bytes: Memory that a program may use.
    peak_flops: Floating-point operations in a second, in bfloat16 products.
    memory_bandwidth: Bytes in a second, to and from memory.
  """

  memory_bytes: int
  peak_flops: float
  memory_bandwidth: float


CHIPS: Mapping[str, Chip] = {
  "v4": Chip(int(30.75 * 2**30), 275e12, 1200e9),
  "v5e": Chip(int(15.75 * 2**30), 197e12, 819e9),
  "v5p": Chip(int(95.74 * 2**30), 459e12, 2765e9),
  "v6e": Chip(int(31.25 * 2**30), 918e12, 1638e9),
}
