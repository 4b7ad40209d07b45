"""Memory of steps that run on CPUs.

There a step's temporaries, gigabytes in one piece, are allocated anew at each
step and given back after it: the system clears them page by page, which took a
quarter of a step. Kept in the process they are used again.
"""

import contextlib
import ctypes
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
_IN_FLIGHT = "jax_cpu_enable_async_dispatch"
# In bytes.
_LEAST_TO_SPARE = 64 << 20


def _c_library() -> ctypes.CDLL | None:
  """The GNU C library; None where there is another."""
  library = ctypes.CDLL(None)
  if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
    return None
  library.malloc.restype = ctypes.c_void_p
  library.malloc.argtypes = [ctypes.c_size_t]
  library.free.argtypes = [ctypes.c_void_p]
  return library


def keep_freed_memory() -> None:
  """Lets freed memory stay with the process, from one pool for all threads.

  To be called before jax starts its threads.
  """
  if library := _c_library():
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_M_ARENA_MAX, 1)


def run_in_turn() -> None:
  """Has programs on CPUs done, and their memory freed, before they return.

  Two steps in flight need twice the memory, and take as long as one after the
  other: both want every core. To be called before jax looks for devices.
  """
  jax.config.update(_IN_FLIGHT, False)


def _runs_in_turn() -> bool:
  return not jax.config.values[_IN_FLIGHT]


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


class PlaceOfTemporaries:
  """Where a step's temporaries lie, which are to lie there at every step.

  Between steps the place is kept: nothing small can come to lie in it, so that
  another would be needed, and no library that gives freed memory back
  (protobuf's does, now and then) can have the system clear its pages anew.

  Only for steps in turn: see `run_in_turn`.

  Args:
    num_bytes: what a step allocates at once, at most; for 0 there is no place.
  """

  def __init__(self, num_bytes: int):
    self._library = _c_library() if num_bytes and _runs_in_turn() else None
    self._size = num_bytes
    # What others ask for before a step comes to its place does not break it.
    self._to_spare = max(num_bytes // 8, _LEAST_TO_SPARE)
    self._start = 0
    if self._library:
      self._start = self._library.malloc(num_bytes + self._to_spare) or 0

  def __del__(self):
    if self._library:
      self._library.free(self._start)

  @contextlib.contextmanager
  def lent(self) -> Iterator[None]:
    """Lends the place to a step, which gives it back before it returns."""
    if not (library := self._library):
      yield
      return
    library.free(self._start)
    try:
      yield
    finally:
      self._start = self._take(library)

  def _take(self, library: ctypes.CDLL) -> int:
    """Takes as much of the place as is free, or else another."""
    for part in (1, 1 / 2, 1 / 4, 1 / 8):
      start = library.malloc(self._size + int(part * self._to_spare)) or 0
      if abs(start - self._start) <= self._to_spare:
        return start
      library.free(start)
    # The last one would be kept for nothing.
    library.malloc_trim(0)
    return library.malloc(self._size + self._to_spare) or 0


def _is_of_cpus(mesh: Mesh) -> bool:
  return mesh.devices.flat[0].platform == "cpu"
