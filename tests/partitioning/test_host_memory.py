"""What the C library is told about freed memory, in a process of its own."""

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, pathlib, sys
from realm_jax.partitioning import host_memory

def resident():
  line = next(
    line for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    if line.startswith("VmRSS")
  )
  return int(line.split()[1]) // 1024

if sys.argv[1] == "keep":
  host_memory.keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
before = resident()
piece = library.malloc(ctypes.c_size_t(200 << 20))
ctypes.memset(piece, 1, 200 << 20)
library.free(piece)
freed = resident() - before
host_memory.return_freed_memory()
print(freed, resident() - before)
"""


@pytest.mark.skipif(
  sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
  reason="needs the GNU C library",
)
@pytest.mark.parametrize(("mode", "kept"), [("keep", True), ("default", False)])
def test_freed_memory_stays_until_it_is_returned(mode, kept):
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM, mode],
    check=True,
    capture_output=True,
    text=True,
  )
  freed, returned = map(int, done.stdout.split())
  assert (freed > 150) == kept
  assert returned < 50
