"""Enables jax's cache of compiled programs on disk.

The settings are environment variables, so that child processes inherit them,
and variables that the user has set take precedence.
"""

import contextlib
import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path

from realm_jax.storage.staging import cache_directory

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_SETTINGS = {
  # Room for a dozen models; the least recently used programs are removed.
  "JAX_COMPILATION_CACHE_MAX_SIZE": 1 << 31,
  # Most programs of a small model are compiled within jax's default of a
  # second, and together take longer than its steps.
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
}


def enable() -> None:
  """Makes jax cache the programs that this process and its children compile.

  Does nothing if environment variables of jax disable the cache or set its
  folder. An unusable cache is silently ignored.
  """
  warnings.filterwarnings(
    "ignore", "Error (reading|writing) persistent compilation cache"
  )
  is_enabled = os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower()
  if is_enabled in ("false", "0") or os.environ.get(_FOLDER):
    return
  # A user may have no home directory, or one on a full disk.
  with contextlib.suppress(RuntimeError, OSError):
    folder = cache_directory() / "compilations" / _kind_of_cpu()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for program in folder.glob("*-cache"):
      # jax writes this file after the program. If it is killed in between, the
      # program is never replaced or removed, so remove it here.
      if not Path(f"{str(program).removesuffix('-cache')}-atime").exists():
        program.unlink(missing_ok=True)
    for variable, value in {_FOLDER: str(folder), **_SETTINGS}.items():
      if variable not in os.environ:
        os.environ[variable] = str(value)
        # jax reads the environment only when it is imported.
        if jax := sys.modules.get("jax"):
          jax.config.update(variable.lower(), value)


def _kind_of_cpu() -> str:
  """Returns a name for the CPU's instruction set and number of cores.

  XLA compiles for the instructions and cores of the CPU, but jax's cache keys
  include neither.
  """
  described = {platform.machine(), str(os.cpu_count())}
  if hasattr(os, "sched_getaffinity"):
    described.add(f"{len(os.sched_getaffinity(0))} may be used")
  names = ("vendor_id", "cpu family", "model", "flags", "Features")
  with contextlib.suppress(OSError):
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    described.update(line for line in lines if line.startswith(names))
  return hashlib.sha256("\n".join(sorted(described)).encode()).hexdigest()[:16]
