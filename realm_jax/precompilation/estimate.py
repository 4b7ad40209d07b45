"""From a compiled program to what it needs of a chip, and how long it takes."""

import dataclasses
from collections.abc import Sequence

from jax.extend import core

from realm_jax.precompilation import hlo, jaxpr_arithmetic, traffic
from realm_jax.precompilation.chips import Chip
from realm_jax.precompilation.collectives import Collective, collectives
from realm_jax.precompilation.compiler import Compiled
from realm_jax.precompilation.cycles import estimated_cycles
from realm_jax.precompilation.pallas_kernels import Kernel, kernels
from realm_jax.precompilation.programs.program import Program


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Seconds that a run takes at least, each by one resource of a chip."""

  arithmetic: float
  memory: float
  cycles: float

  @property
  def seconds(self) -> float:
    """The largest of them."""
    return max(self.arithmetic, self.memory, self.cycles)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """What one run of a program costs each chip.

  Attributes:
    fits: Whether its memory suffices.
    flops_per_chip: Operations of its matrix products, recomputed ones and those
      on padding included.
    traffic_bytes: Bytes to and from memory; None where it does not fit, as all
      that only the compiled program tells.
    cycles: Cycles by the compiler's estimate, with those of the kernels.
    link_seconds: Time of the collectives' bytes on a chip's links, if none of
      it is hidden.
  """

  program: Program
  compiled: Compiled
  fits: bool
  flops_per_chip: float
  kernels: Sequence[Kernel]
  traffic_bytes: int | None = None
  cycles: float | None = None
  collectives: Sequence[Collective] = ()
  link_seconds: float | None = None
  bounds: Bounds | None = None
  utilisation: float | None = None

  @property
  def seconds(self) -> float | None:
    """Estimated time of a run."""
    return None if self.bounds is None else self.bounds.seconds


def estimate(
  program: Program, jaxpr: core.Jaxpr, compiled: Compiled, chip: Chip
) -> Estimate:
  """Returns the costs of a program that was traced and compiled."""
  trips = program.unknown_trips
  flops = jaxpr_arithmetic.flops(jaxpr, unknown_trips=trips) / program.chips
  found = kernels(jaxpr, chip, unknown_trips=trips)
  fits = compiled.total_bytes <= chip.memory_bytes
  if compiled.text is None:
    return Estimate(program, compiled, False, flops, found)
  module = hlo.parse(compiled.text, unknown_trips=trips)
  traffic_bytes = traffic.memory_traffic(module) + sum(k.bytes for k in found)
  cycles = estimated_cycles(module)
  cycles += sum(kernel.seconds for kernel in found) * chip.clock
  bounds = Bounds(
    arithmetic=flops / chip.peak_flops,
    memory=traffic_bytes / chip.memory_bandwidth,
    cycles=cycles / chip.clock,
  )
  moved = collectives(module, dict(program.mesh.shape))
  useful = program.work.flops / program.chips
  return Estimate(
    program=program,
    compiled=compiled,
    fits=fits,
    flops_per_chip=flops,
    kernels=found,
    traffic_bytes=traffic_bytes,
    cycles=cycles,
    collectives=moved,
    link_seconds=sum(c.sent_bytes for c in moved) / chip.link_bandwidth,
    bounds=bounds,
    utilisation=useful / chip.peak_flops / bounds.seconds,
  )
