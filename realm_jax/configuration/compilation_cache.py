"""Compiled programs that are kept on disk, for the next start of a command.

jax has the cache; here is where it lies, how large it may become, and what is
needed for many processes and kinds of CPUs to share a home directory. Its
settings are environment variables, so that they hold for the processes that a
command starts, and so that what a user has set holds instead.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path

from realm_jax.storage.staging import cache_directory

ENABLED_VARIABLE = "JAX_ENABLE_COMPILATION_CACHE"
_FOLDER_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_SETTINGS = {
  # The programs of a dozen models; those go that were not used for longest.
  "JAX_COMPILATION_CACHE_MAX_SIZE": 1 << 31,
  # Most programs of a small model are compiled within jax's default of a
  # second, and together take longer than its steps.
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
}
# Files of jax's cache: programs, when each was used, and the lock for both.
_PROGRAM, _USED, _LOCK = "-cache", "-atime", ".lockfile"


def enable() -> None:
  """Has jax keep the programs that this process and its children compile.

  Does nothing where environment variables of jax turn the cache off or name a
  folder for it. A cache that cannot be used is left unused without a word.
  """
  warnings.filterwarnings(
    "ignore", "Error (reading|writing) persistent compilation cache"
  )
  is_enabled = os.environ.get(ENABLED_VARIABLE, "true").lower()
  if is_enabled in ("false", "0") or os.environ.get(_FOLDER_VARIABLE):
    return
  try:
    folder = cache_directory() / "compilations" / _kind_of_cpu()
  except RuntimeError:  # This user has no home.
    return
  for name, value in {_FOLDER_VARIABLE: folder, **_SETTINGS}.items():
    os.environ.setdefault(name, str(value))
    # jax has read the environment when it was imported.
    if jax := sys.modules.get("jax"):
      setting = name.lower()
      kind = type(value) if name in _SETTINGS else str
      jax.config.update(setting, kind(os.environ[name]))
  with contextlib.suppress(OSError):
    _remove_unfinished(folder)


def disable() -> None:
  """Has neither this process nor its children keep what they compile."""
  os.environ[ENABLED_VARIABLE] = "false"
  if jax := sys.modules.get("jax"):
    jax.config.update(ENABLED_VARIABLE.lower(), False)


def _kind_of_cpu() -> str:
  """Returns a name for the CPU's instructions and the number of its cores.

  XLA compiles for the instructions of the CPU that it runs on, and divides
  work by the cores that it may use; jax looks up programs by neither.
  """
  described = [platform.machine(), str(os.cpu_count())]
  if hasattr(os, "sched_getaffinity"):
    described.append(str(len(os.sched_getaffinity(0))))
  with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
    names = ("vendor_id", "cpu family", "model", "flags", "Features")
    first = file.read().partition("\n\n")[0].splitlines()
    described += [ln for ln in first if ln.partition("\t")[0] in names]
  return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def _remove_unfinished(folder: Path) -> None:
  """Removes what processes that were killed have left.

  jax writes a program and then when it was used, under a lock. It neither
  writes a program again that is there, nor makes room where a time is missing.
  """
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  with (folder / _LOCK).open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    files = set(os.listdir(folder))
    for name in files:
      used = name.removesuffix(_PROGRAM) + _USED
      if name.endswith(_PROGRAM) and used not in files:
        (folder / name).unlink()
