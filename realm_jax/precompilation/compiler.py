"""Compiles programs for devices that are not there, once."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
from pathlib import Path

import jax

from realm_jax.files.whole.whole_file import whole_file
from realm_jax.precompilation.programs import Program
from realm_jax.precompilation.topology import Topology

# jax's own cache of compilations writes programs for a topology, and cannot
# read them again without its devices. Kept here is what a report needs.
_CACHE_FORMAT = 3
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEEDED = re.compile(
  r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)"
)


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What the compiler says of a program, for one device.

  Attributes:
    argument_bytes: Bytes of the arguments.
    output_bytes: Bytes of the results that do not take an argument's place.
    temporary_bytes: Bytes of the temporaries; where they do not fit, what the
      compiler said last.
    code_bytes: Bytes of the program itself.
    flops: Floating-point operations by XLA's cost analysis, which counts the
      body of a loop once; None where it does not count them.
    accessed_bytes: Bytes that it counts as read and written, in whichever
      memory; None where it does not count them.
  """

  argument_bytes: int
  output_bytes: int
  temporary_bytes: int
  code_bytes: int
  flops: float | None = None
  accessed_bytes: float | None = None

  @property
  def total_bytes(self) -> int:
    """Bytes that a device needs to run the program."""
    return (
      self.argument_bytes
      + self.output_bytes
      + self.temporary_bytes
      + self.code_bytes
    )


def compile_program(
  program: Program,
  lowered: jax.stages.Lowered,
  topology: Topology,
  *,
  cache: Path | None,
) -> Compiled:
  """Compiles a program, unless the cache has what the compiler said of it.

  Args:
    program: What was lowered.
    lowered: The same program, lowered for the devices of the topology.
    topology: Slice that it is compiled for.
    cache: Directory of earlier compilations; None compiles.
  """
  if cache is None:
    return _compile(lowered, program.argument_bytes)
  # The order of the devices decides which links a collective takes.
  devices = [(d.id, *d.coords) for d in program.mesh.devices.flat]
  key = hashlib.sha256()
  for part in (
    str(_CACHE_FORMAT),
    importlib.metadata.version("jaxlib"),
    topology.compiler,
    topology.name,
    f"{dict(program.mesh.shape)} {devices}",
    lowered.as_text(),
  ):
    key.update(part.encode() + b"\0")
  file = cache / f"{key.hexdigest()[:32]}.json"
  if file.is_file():
    return Compiled(**json.loads(file.read_text()))
  compiled = _compile(lowered, program.argument_bytes)
  cache.mkdir(parents=True, exist_ok=True)
  with whole_file(file) as partial:
    partial.write_text(json.dumps(dataclasses.asdict(compiled)))
  return compiled


def _compile(lowered: jax.stages.Lowered, argument_bytes: int) -> Compiled:
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    temporary_bytes = needed_temporaries(str(error), argument_bytes)
    if temporary_bytes is None:
      raise
    return Compiled(argument_bytes, 0, temporary_bytes, 0)
  memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
  assert memory is not None
  counted = costs if isinstance(costs, dict) else {}
  flops, accessed = (
    counted[name] if counted.get(name, -1) >= 0 else None
    for name in ("flops", "bytes accessed")
  )
  return Compiled(
    argument_bytes=memory.argument_size_in_bytes,
    output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    temporary_bytes=memory.temp_size_in_bytes,
    code_bytes=memory.generated_code_size_in_bytes,
    flops=flops,
    accessed_bytes=accessed,
  )


def needed_temporaries(message: str, argument_bytes: int) -> int | None:
  """Returns the temporaries of a program that does not fit, by libtpu's error.

  It names either these, or all that the program needs. None if it is another
  error.
  """
  needed = _NEEDED.search(message)
  if "RESOURCE_EXHAUSTED" not in message or needed is None:
    return None
  used = int(float(needed.group(1)) * _UNITS[needed.group(2)])
  if "for HLO temporaries" in message:
    return used
  return max(0, used - argument_bytes)


def cache_directory() -> Path:
  """Returns the user's directory for what compilations said."""
  base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
  return Path(base) / "realm_jax" / "precompile"
