"""What the C library is told about freed memory, in a process of its own."""

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, pathlib, sys
from realm_jax.partitioning import host_memory

SIZE = 200 << 20
library = ctypes.CDLL(None)
library.aligned_alloc.restype = library.malloc.restype = ctypes.c_void_p
library.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def resident():
  line = next(
    line for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    if line.startswith("VmRSS")
  )
  return int(line.split()[1]) // 1024

def touched(size):
  piece = library.aligned_alloc(64, size)
  ctypes.memset(piece, 1, size)
  return piece

"""
_KEEP = """
if sys.argv[1] == "keep":
  host_memory.keep_freed_memory()
before = resident()
library.free(touched(SIZE))
freed = resident() - before
host_memory.return_freed_memory()
print(freed, resident() - before)
"""
_STEPS = """
import resource

host_memory.keep_freed_memory()
if sys.argv[1] == "with":
  host_memory.run_in_turn()
# Where a process has run for a while, small pieces of all sizes are free.
for piece in [library.malloc(n) for n in range(24, 1024, 16) for _ in range(9)]:
  library.free(piece)
before = resident()
place = host_memory.PlaceOfTemporaries(SIZE)
for step in range(4):
  with place.lent():
    # Something small comes before the temporaries.
    small = library.malloc(2 << 20)
    temporaries = touched(SIZE)
    library.free(temporaries)
    library.free(small)
  # Would come to lie in the place that was freed.
  library.malloc(3 << 20)
  # As protobuf does now and then.
  library.malloc_trim(0)
  faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  print(faults * resource.getpagesize() >> 20, resident() - before)
del place
library.malloc_trim(0)
print(resident() - before)
"""


def _run(program, mode):
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM + program, mode],
    check=True,
    capture_output=True,
    text=True,
  )
  return [int(word) for word in done.stdout.split()]


pytestmark = pytest.mark.skipif(
  sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
  reason="needs the GNU C library",
)


@pytest.mark.parametrize(("mode", "kept"), [("keep", True), ("default", False)])
def test_freed_memory_stays_until_it_is_returned(mode, kept):
  freed, returned = _run(_KEEP, mode)
  assert (freed > 150) == kept
  assert returned < 50


def test_steps_have_one_place_whose_pages_are_cleared_once():
  cleared, resident, after = _figures("with")
  # A small piece beside the place may cost it once, and never every time.
  assert cleared < 250
  assert 150 < resident < 250
  assert after < 50
  cleared, _, _ = _figures("without")
  assert cleared > 550


def _figures(mode):
  """MiB that were cleared after the first step, are kept, and are at last."""
  numbers = _run(_STEPS, mode)
  return numbers[-3] - numbers[0], numbers[-2], numbers[-1]
