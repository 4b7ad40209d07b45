"""A program of a run, and what it is for."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from realm_jax.training.useful_flops import Work

STEP, EMBEDDING, SEARCH = "training step", "embedding", "search"


@dataclasses.dataclass(frozen=True)
class Program:
  """One program of a run.

  Attributes:
    kind: What it is for: one of the kinds above.
    name: Name that tells it from others of its kind.
    function: The jitted function.
    arguments: Abstract arrays, with their shardings.
    settings: Its static arguments.
    mesh: Mesh that it runs on, in effect while it is traced.
    work: Useful work of a run of it, on all its devices.
    unknown_trips: How often its loops run whose bound is an argument.
    runs: How often a builder with one such mesh runs it for a generation.
    round_steps: In how many runs, at most, it embeds every block; None if it
      is no step that does.
  """

  kind: str
  name: str
  function: Any
  arguments: tuple[Any, ...]
  mesh: Mesh
  work: Work
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unknown_trips: int = 1
  runs: float = 0
  round_steps: int | None = None

  @property
  def chips(self) -> int:
    """Number of devices that it runs on."""
    return self.mesh.size

  @property
  def device_order(self) -> str:
    """The mesh and its devices, which decide what links a collective takes."""
    devices = [(d.id, *d.coords) for d in self.mesh.devices.flat]
    return f"{dict(self.mesh.shape)} {devices}"

  @property
  def argument_bytes(self) -> int:
    """Bytes of the arguments that a device holds."""
    return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(self.arguments)
    )

  def trace(self) -> jax.stages.Traced:
    """Traces it, without a device."""
    with jax.set_mesh(self.mesh):
      return self.function.trace(*self.arguments, **self.settings)
