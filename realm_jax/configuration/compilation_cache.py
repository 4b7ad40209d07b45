"""Compiled programs that jax keeps on disk, for the next start of a command.

The settings are environment variables, so that they hold for the processes that
a command starts, and so that what a user has set holds instead.
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
  # Room for a dozen models; those go that were not used for longest.
  "JAX_COMPILATION_CACHE_MAX_SIZE": 1 << 31,
  # Most programs of a small model are compiled within jax's default of a
  # second, and together take longer than its steps.
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
}


def enable() -> None:
  """Has jax keep the programs that this process and its children compile.

  Does nothing where environment variables of jax turn the cache off or name a
  folder for it. A cache that cannot be used is left unused without a word.
  """
  warnings.filterwarnings(
    "ignore", "Error (reading|writing) persistent compilation cache"
  )
  is_enabled = os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower()
  if is_enabled in ("false", "0") or os.environ.get(_FOLDER):
    return
  # A user may have no home, or one on a full disk.
  with contextlib.suppress(RuntimeError, OSError):
    folder = cache_directory() / "compilations" / _kind_of_cpu()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for program in folder.glob("*-cache"):
      # jax writes this file after the program, unless it is killed. Then it
      # neither replaces the program nor removes any to make room.
      if not Path(f"{str(program).removesuffix('-cache')}-atime").exists():
        program.unlink(missing_ok=True)
    for variable, value in {_FOLDER: str(folder), **_SETTINGS}.items():
      if variable not in os.environ:
        os.environ[variable] = str(value)
        # jax has read the environment when it was imported.
        if jax := sys.modules.get("jax"):
          jax.config.update(variable.lower(), value)


def _kind_of_cpu() -> str:
  """Returns a name for the CPU's instructions and the number of its cores.

  XLA compiles for the instructions of the CPU that it runs on, and divides
  work by the cores that it may use; jax looks up programs by neither.
  """
  described = {platform.machine(), str(os.cpu_count())}
  if hasattr(os, "sched_getaffinity"):
    described.add(f"{len(os.sched_getaffinity(0))} may be used")
  names = ("vendor_id", "cpu family", "model", "flags", "Features")
  with contextlib.suppress(OSError):
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    described.update(line for line in lines if line.startswith(names))
  return hashlib.sha256("\n".join(sorted(described)).encode()).hexdigest()[:16]
