"""An index in a process of its own: the same answers, and a crash survived."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexCrashedError,
  IndexLoadError,
  SearchError,
)
from realm_jax.indexes.scann import ScannConfig
from tests.indexes.clustered import blocks_of, clustered, queries_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  directory = tmp_path_factory.mktemp("isolated") / "scann"
  blocks = blocks_of(clustered(500, 1))
  index = ScannConfig().build(blocks, BuildOptions(directory=directory))
  return index, directory, blocks


def test_it_answers_alike_and_outlives_no_one(built):
  index, directory, blocks = built
  isolated = IsolatedIndex(ScannConfig(), directory, blocks)
  for count, k in [(1, 1), (40, 8), (3, 500)]:
    queries = queries_of(clustered(count, 2))
    here, there = index.search(queries, k), isolated.search(queries, k)
    np.testing.assert_array_equal(here.rows, there.rows)
    np.testing.assert_array_equal(here.scores, there.scores)
  with pytest.raises(SearchError, match="k=501"):
    isolated.search(queries, 501)
  child = isolated._process
  del isolated
  assert child.wait(timeout=10) is not None


def test_a_crash_is_said_and_searches_fail_from_then_on(built):
  _, directory, blocks = built
  isolated = IsolatedIndex(ScannConfig(), directory, blocks)
  os.kill(isolated._process.pid, signal.SIGSEGV)
  queries = queries_of(clustered(3, 2))
  for _ in range(2):
    with pytest.raises(IndexCrashedError, match="scann ended by SIGSEGV"):
      isolated.search(queries, 4)


_SEARCHES_UNTIL_KILLED = """
import sys, time
import numpy as np
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks
from realm_jax.indexes.scann import ScannConfig
shape = [int(n) for n in sys.argv[2:]]
blocks = Blocks(num_blocks=shape[0], vectors=np.zeros(shape, np.float32))
index = IsolatedIndex(ScannConfig(), sys.argv[1], blocks)
print(index._process.pid, flush=True)
time.sleep(600)
"""


def test_no_process_searches_for_one_that_was_killed(built):
  _, directory, blocks = built
  shape = [str(n) for n in blocks.vectors.shape]
  asking = subprocess.Popen(
    [sys.executable, "-c", _SEARCHES_UNTIL_KILLED, directory, *shape],
    cwd=Path(__file__).parents[2],
    stdout=subprocess.PIPE,
    text=True,
  )
  process = int(asking.stdout.readline())
  path = Path(f"/proc/{process}/cmdline")
  assert b"isolated" in path.read_bytes()
  asking.kill()
  asking.communicate()
  deadline = time.monotonic() + 20
  # Of one that has ended nothing is left, or an empty line until it is reaped.
  while path.exists() and path.read_bytes():
    assert time.monotonic() < deadline, "it searches on, for nobody"
    time.sleep(0.05)


def test_a_process_that_hangs_is_ended(built):
  _, directory, blocks = built
  isolated = IsolatedIndex(
    ScannConfig(), directory, blocks, timeout_seconds=0.5
  )
  os.kill(isolated._process.pid, signal.SIGSTOP)
  start = time.monotonic()
  with pytest.raises(IndexCrashedError, match="does not answer"):
    isolated.search(queries_of(clustered(3, 2)), 4)
  assert time.monotonic() - start < 30
  assert isolated._process.poll() is not None


def test_what_cannot_be_loaded_is_refused(built, tmp_path):
  _, directory, blocks = built
  with pytest.raises(IndexLoadError, match="not a directory"):
    IsolatedIndex(ScannConfig(), tmp_path / "nothing", blocks)
  with pytest.raises(IndexLoadError, match="500 blocks"):
    IsolatedIndex(ScannConfig(), directory, blocks_of(clustered(501, 1)))
