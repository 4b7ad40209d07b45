"""Freed memory on CPUs, in a process of its own."""

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, pathlib, sys
import jax
from realm_jax.partitioning import cpu_tuning

SIZE = 200 << 20
library = ctypes.CDLL(None)
library.aligned_alloc.restype = ctypes.c_void_p
library.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def resident():
  text = pathlib.Path("/proc/self/status").read_text()
  return int(text.partition("VmRSS:")[2].split()[0]) // 1024

def measure():
  before = resident()
  piece = library.aligned_alloc(64, SIZE)
  ctypes.memset(piece, 1, SIZE)
  library.free(piece)
  freed = resident() - before
  cpu_tuning.return_freed_memory()
  print(freed, resident() - before)

cpu_tuning.disable_async_dispatch()
measure()
cpu_tuning.keep_freed_memory()
measure()
step = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ y, x))
x = jax.numpy.eye(600)
compiled = step.lower(x).compile()
print(int(compiled(x).is_ready()))
"""


@pytest.mark.slow
@pytest.mark.skipif(
  sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
  reason="needs the GNU C library",
)
def test_freed_memory_stays_on_cpus_and_a_step_is_done_when_its_call_returns():
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
  )
  *memory, is_ready = (int(word) for word in done.stdout.split())
  # Before and after it is tuned: freed, and then returned to the system.
  assert [kept > 150 for kept in memory] == [False, False, True, False]
  assert is_ready == 1
