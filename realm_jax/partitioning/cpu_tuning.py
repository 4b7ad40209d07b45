"""Tuning of processes whose devices are CPUs.

On CPUs, XLA allocates a step's temporaries, gigabytes in one piece, with
malloc. By default, glibc returns them to the system after each step and maps
them again, page by page, for the next one, which took a quarter of a step. Here
malloc keeps freed memory. The cost is that memory never shrinks by itself, and
that all threads, including tf.data's, share one arena and its lock.

On GPUs and TPUs, temporaries are on the devices, so nothing is changed there.
"""

import ctypes

import jax
from jax.sharding import Mesh

# Constants of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


def _c_library() -> ctypes.CDLL | None:
  """Returns the GNU C library, or None if there is another one."""
  library = ctypes.CDLL(None)
  has_both = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
  return library if has_both else None


def disable_async_dispatch() -> None:
  """Makes calls of programs on CPUs return only when the program is done.

  Two steps in flight both use every core, so they are no faster than one after
  the other, but need twice the memory. jax's option affects only CPU devices.
  It is read when jax looks for devices, so call this before.
  """
  jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_freed_memory() -> None:
  """Keeps freed memory in this process if its devices are CPUs.

  Makes jax look for its devices, so call `disable_async_dispatch` and
  `jax.distributed.initialize` before. Threads that jax has started by then do
  not matter: a step's temporaries are in the main arena.
  """
  library = _c_library()
  if jax.default_backend() != "cpu" or library is None:
    return
  library.mallopt(_M_MMAP_MAX, 0)
  library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
  library.mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
  """Returns memory of past compilations to the system, once."""
  if jax.default_backend() == "cpu" and (library := _c_library()):
    library.malloc_trim(0)


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
  """Returns XLA's options for a step: on CPUs, a schedule for least memory."""
  if mesh.devices.flat[0].platform != "cpu":
    return {}
  return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
