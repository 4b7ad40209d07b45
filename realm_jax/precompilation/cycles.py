"""The cycles that the compiler estimates of a module's instructions."""

import re

from realm_jax.precompilation.hlo import Module

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


def estimated_cycles(module: Module) -> int:
  """Returns the cycles of all instructions, each times its loop's trips.

  The compiler estimates fusions, and neither custom calls nor collectives.
  """
  total = 0
  for _, instruction, runs in module.scheduled():
    if found := _CYCLES.search(instruction.attributes):
      total += int(found.group(1)) * runs
  return total
