"""Compiles programs for devices that are not there, once."""

import dataclasses
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
from pathlib import Path

import jax

from realm_jax.files.whole.whole_file import whole_file

# jax's own cache of compilations writes programs for a topology, and cannot
# read them again without its devices. Kept here is what a report needs.
_CACHE_FORMAT = 2
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEEDED = re.compile(
  r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)"
)


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What the compiler says of a program.

  Attributes:
    text: Text of the compiled module; None where it does not fit.
    argument_bytes: Bytes of the arguments of a device.
    output_bytes: Bytes of its results that do not take an argument's place.
    temporary_bytes: Bytes of its temporaries; where they do not fit, what the
      compiler said last.
    code_bytes: Bytes of the program itself.
    accessed_bytes: Bytes that the compiler counts as read and written, in
      whichever memory, loops once; None where it does not count.
  """

  text: str | None
  argument_bytes: int
  output_bytes: int
  temporary_bytes: int
  code_bytes: int
  accessed_bytes: int | None = None

  @property
  def total_bytes(self) -> int:
    """Bytes that a device needs to run it."""
    return (
      self.argument_bytes
      + self.output_bytes
      + self.temporary_bytes
      + self.code_bytes
    )


def compile_program(
  lowered: jax.stages.Lowered,
  *,
  argument_bytes: int,
  cache: Path | None,
  compiler: str,
) -> Compiled:
  """Compiles a program, unless the cache has what the compiler said of it.

  Args:
    lowered: Program for the devices of a topology.
    argument_bytes: Bytes of a device's arguments.
    cache: Directory of earlier compilations; None compiles.
    compiler: Text that names the library that compiles, the topology and the
      order of its devices.
  """
  if cache is None:
    return _compile(lowered, argument_bytes)
  key = hashlib.sha256()
  for part in (
    str(_CACHE_FORMAT),
    importlib.metadata.version("jaxlib"),
    compiler,
  ):
    key.update(part.encode() + b"\0")
  key.update(lowered.as_text().encode())
  file = cache / f"{key.hexdigest()[:32]}.json.gz"
  if file.is_file():
    return Compiled(**json.loads(gzip.decompress(file.read_bytes())))
  compiled = _compile(lowered, argument_bytes)
  cache.mkdir(parents=True, exist_ok=True)
  with whole_file(file) as partial:
    text = json.dumps(dataclasses.asdict(compiled))
    partial.write_bytes(gzip.compress(text.encode(), compresslevel=5))
  return compiled


def _compile(lowered: jax.stages.Lowered, argument_bytes: int) -> Compiled:
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    temporary_bytes = needed_temporaries(str(error), argument_bytes)
    if temporary_bytes is None:
      raise
    return Compiled(None, argument_bytes, 0, temporary_bytes, 0)
  memory = compiled.memory_analysis()
  assert memory is not None
  return Compiled(
    text=compiled.as_text(),
    argument_bytes=memory.argument_size_in_bytes,
    output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    temporary_bytes=memory.temp_size_in_bytes,
    code_bytes=memory.generated_code_size_in_bytes,
    accessed_bytes=_accessed_bytes(compiled),
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


def _accessed_bytes(compiled: jax.stages.Compiled) -> int | None:
  costs = compiled.cost_analysis()
  counted = costs.get("bytes accessed", -1) if isinstance(costs, dict) else -1
  return int(counted) if counted >= 0 else None


def cache_directory() -> Path:
  """Returns the user's directory for what compilations said."""
  base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
  return Path(base) / "realm_jax" / "precompile"
