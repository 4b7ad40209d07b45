"""Arrays on a disk that may be full."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from realm_jax.files import npy


@pytest.mark.parametrize("shape", [(0,), (3,), (5, 4)])
def test_what_is_saved_is_what_numpy_reads(tmp_path, shape):
  array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  npy.save(tmp_path / "a.npy", array)
  np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


def test_a_mapped_array_has_disk_space_before_it_is_written(tmp_path):
  path = tmp_path / "a.npy"
  array = npy.create_mapped(path, np.float32, (1000, 500))
  # A hole would have no blocks, and writing to it might find none.
  assert path.stat().st_blocks * 512 >= array.nbytes
  array[:] = 3
  array.flush()
  np.testing.assert_array_equal(np.load(path), array)


@pytest.mark.slow
@pytest.mark.parametrize(
  "write",
  [
    "npy.save(path, np.zeros(5000, np.float32))",
    "npy.create_mapped(path, np.float32, (5000,))",
  ],
)
def test_a_full_disk_is_an_error_of_the_system(tmp_path, write):
  program = f"""
    import errno, resource, sys
    from pathlib import Path
    import numpy as np
    from realm_jax.files import npy
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    path = Path(sys.argv[1])
    try:
      {write}
    except OSError as error:
      sys.exit(7 if error.errno == errno.EFBIG else 1)
  """
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program), tmp_path / "a.npy"],
    cwd=Path(__file__).parents[2],
    check=False,
    timeout=60,
  )
  assert done.returncode == 7
