"""Choices of the models that depend on the platform."""

import functools
from pathlib import Path

import jax

# Precisions of jax that leave products to the platform, or select bfloat16.
_ANY_PRECISION = (None, "default", "fastest", "bfloat16")
# Maximum number of layers that CPUs run without a loop. A loop copies each
# layer's residuals for the backward pass, which takes a fifth of a step;
# without one, deep encoders take minutes to compile.
_MOST_UNROLLED = 8


@functools.cache
def _multiplies_bfloat16_fast() -> bool:
  """Returns whether the CPU has AMX, or AVX-512 for bfloat16."""
  try:
    return "_bf16" in Path("/proc/cpuinfo").read_text()
  except OSError:
    return False


def platform() -> str:
  """Returns the platform of the mesh in effect, or jax's default."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def multiplies_bfloat16() -> bool:
  """Returns whether products of float32 arrays are computed by `matmul`.

  CPUs multiply bfloat16 four times as fast as float32 with AMX, and nearly
  twice as fast with AVX-512. TPUs use bfloat16 by themselves.
  """
  # pyrefly: ignore [missing-attribute]
  precision = jax.config.jax_default_matmul_precision
  is_cpu = platform() == "cpu"
  return precision in _ANY_PRECISION and is_cpu and _multiplies_bfloat16_fast()


def num_unrolled(num_layers: int) -> int:
  """Returns the number of a loop's layers to unroll."""
  is_short = num_layers <= _MOST_UNROLLED
  return num_layers if platform() == "cpu" and is_short else 1
