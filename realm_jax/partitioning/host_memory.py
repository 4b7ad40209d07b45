"""Memory of steps that run on CPUs.

There a step's temporaries, gigabytes in one piece, are allocated anew at each
step and given back after it: the system clears them page by page, which took a
quarter of a step. Kept in the process they are used again.
"""

import ctypes
from typing import Any

import jax
from jax.sharding import Mesh

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


def _c_library() -> ctypes.CDLL | None:
  """The GNU C library; None where there is another."""
  library = ctypes.CDLL(None)
  known = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
  return library if known else None


def keep_freed_memory() -> None:
  """Lets freed memory stay with the process, from one pool for all threads.

  To be called before jax starts its threads.
  """
  if library := _c_library():
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
  """Gives back, once, what compilations have used."""
  if library := _c_library():
    library.malloc_trim(0)


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
  """For a step: on CPUs, the order of operations that needs least memory."""
  if not _is_of_cpus(mesh):
    return {}
  return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def wait_for_room(state: Any, mesh: Mesh) -> None:
  """On CPUs, waits for the step that `state` comes from.

  A step's temporaries are allocated when it is dispatched: two steps in flight
  need twice the memory, and on CPUs take as long as one after the other.
  """
  if _is_of_cpus(mesh):
    jax.block_until_ready(state)


def _is_of_cpus(mesh: Mesh) -> bool:
  return mesh.devices.flat[0].platform == "cpu"
