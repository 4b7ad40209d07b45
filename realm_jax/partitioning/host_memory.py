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
# Of XLA's arrays on CPUs, in bytes.
_ALIGNMENT = 64


def _c_library() -> ctypes.CDLL | None:
  """The GNU C library; None where there is another."""
  library = ctypes.CDLL(None)
  if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
    return None
  library.aligned_alloc.restype = library.sbrk.restype = ctypes.c_void_p
  library.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
  library.free.argtypes = [ctypes.c_void_p]
  library.sbrk.argtypes = [ctypes.c_ssize_t]
  return library


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


def temporary_bytes(step: jax.stages.Compiled, mesh: Mesh) -> int:
  """What a step allocates at once on CPUs, and frees; 0 on other devices."""
  analysis = step.memory_analysis() if _is_of_cpus(mesh) else None
  return 0 if analysis is None else analysis.temp_size_in_bytes


def make_room(num_bytes: int, *, after: Any) -> None:
  """Lets a step's temporaries take the place of those of the step before.

  Two steps in flight would need twice the memory, and on CPUs take as long as
  one after the other. And where something small has come to lie in the place
  that was freed, another is needed, and the first would be kept for nothing.

  Args:
    num_bytes: what the next step allocates at once; 0 does nothing.
    after: the arrays of the step before.
  """
  if not num_bytes:
    return
  jax.block_until_ready(after)
  if library := _c_library():
    end = library.sbrk(0)
    library.free(library.aligned_alloc(_ALIGNMENT, num_bytes))
    if library.sbrk(0) != end:
      library.malloc_trim(0)


def _is_of_cpus(mesh: Mesh) -> bool:
  return mesh.devices.flat[0].platform == "cpu"
