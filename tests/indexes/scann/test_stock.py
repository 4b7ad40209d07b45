"""ScaNN's own builder: near exact search, measured like our own."""

import dataclasses
import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.indexes.protocol import BuildOptions
from realm_jax.indexes.scann import files
from realm_jax.indexes.scann.config import ScannConfig
from tests.indexes.clustered import blocks_of, clustered, queries_of

_VECTORS = clustered(3_000, 1)
_QUERIES = queries_of(clustered(200, 2))
_STOCK = ScannConfig(builder="stock", brute_force_below=0)


@pytest.fixture(autouse=True)
def _no_private_formats(monkeypatch):
  """Makes what our own builder needs fail."""
  monkeypatch.setattr(files, "write", None)


@pytest.mark.parametrize(
  "change",
  [
    {},
    {"num_leaves": 40, "reordering": "float32"},
    {"dims_per_code": 3},
  ],
)
def test_it_meets_the_target_and_loads_as_it_was_built(tmp_path, change):
  config = dataclasses.replace(_STOCK, **change)
  options = BuildOptions(directory=tmp_path / "scann", queries=_QUERIES)
  index = config.build(blocks_of(_VECTORS), options)
  assert index.report["structure_of"] == "the settings"
  assert change.items() <= index.report["structure"].items()
  found = index.search(_QUERIES, 8)
  best = np.argsort(-(_QUERIES.vectors @ _VECTORS.T), axis=1)[:, :8]
  hits = [len(set(a) & set(b)) for a, b in zip(found.rows, best, strict=True)]
  assert np.mean(hits) / 8 > 0.95
  # A generation is renamed when it is published.
  moved = (tmp_path / "scann").rename(tmp_path / "published")
  loaded = config.load(moved, blocks_of(_VECTORS)).search(_QUERIES, 8)
  np.testing.assert_array_equal(loaded.rows, found.rows)


_WRITES_TO_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from realm_jax.indexes.protocol import Blocks, BuildOptions
from realm_jax.indexes.scann.config import ScannConfig
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
blocks = Blocks(num_blocks=500, vectors=np.ones((500, 32), np.float32))
try:
  ScannConfig().build(blocks, BuildOptions(directory=Path(sys.argv[1])))
except OSError as error:
  print(error.errno)
"""


@pytest.mark.slow
def test_a_full_disk_is_an_error_of_the_system(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", _WRITES_TO_A_FULL_DISK, tmp_path / "scann"],
    cwd=Path(__file__).parents[3],
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  )
  assert done.stdout.split() == [str(errno.ENOSPC)]
