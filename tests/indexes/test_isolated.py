"""An index in a process of its own: same results, and crashes are contained."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from realm_jax.indexes import isolated
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexCrashedError,
  SearchError,
)
from realm_jax.indexes.scann.config import ScannConfig
from tests.indexes.clustered import blocks_of, clustered, queries_of

pytestmark = pytest.mark.slow


@pytest.fixture
def send_on_start(monkeypatch):
  """Sends a signal to every process as soon as it starts."""
  start = subprocess.Popen

  def send(number):
    def started(*args, **settings):
      process = start(*args, **settings)
      process.send_signal(number)
      return process

    monkeypatch.setattr(isolated.subprocess, "Popen", started)

  return send


def _built(config, directory):
  blocks = blocks_of(clustered(500, 1))
  index = config.build(blocks, BuildOptions(directory=directory))
  return index, directory, blocks


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  return _built(FaissConfig(), tmp_path_factory.mktemp("isolated") / "faiss")


def _loaded(config, directory, blocks):
  index = IsolatedIndex(config, directory, blocks)
  index.wait_until_loaded()
  return index


def test_it_answers_alike_and_ends_with_its_owner(tmp_path):
  config = ScannConfig()
  index, directory, blocks = _built(config, tmp_path / "index")
  searcher = _loaded(config, directory, blocks)
  # ScaNN is imported without TensorFlow, which takes seconds.
  assert "/tensorflow/" not in Path(f"/proc/{searcher.pid}/maps").read_text()
  # A terminal or scheduler signals both; the run ends by itself.
  for number in (signal.SIGINT, signal.SIGTERM):
    searcher._process.send_signal(number)
  for count, k in [(1, 1), (40, 8), (3, 500)]:
    queries = queries_of(clustered(count, 2))
    here, there = index.search(queries, k), searcher.search(queries, k)
    np.testing.assert_array_equal(here.rows, there.rows)
    np.testing.assert_array_equal(here.scores, there.scores)
  with pytest.raises(SearchError, match="k=501"):
    searcher.search(queries, 501)
  child = searcher._process
  del searcher
  assert child.wait(timeout=10) is not None


def test_a_crash_is_reported_and_later_searches_fail(built):
  index, directory, blocks = built
  searcher = _loaded(FaissConfig(), directory, blocks)
  queries = queries_of(clustered(3, 2))
  here, there = index.search(queries, 4), searcher.search(queries, 4)
  np.testing.assert_array_equal(here.rows, there.rows)
  os.kill(searcher.pid, signal.SIGSEGV)
  for _ in range(2):
    with pytest.raises(IndexCrashedError, match="faiss ended by SIGSEGV"):
      searcher.search(queries, 4)


_SEARCHES_UNTIL_KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks
from realm_jax.indexes.faiss import FaissConfig
shape = [int(n) for n in sys.argv[2:]]
blocks = Blocks(num_blocks=shape[0], vectors=np.zeros(shape, np.float32))
index = IsolatedIndex(FaissConfig(), Path(sys.argv[1]), blocks)
index.wait_until_loaded()
print(index.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_when_its_owner_is_killed(built):
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
  # An ended process has no entry, or an empty one until it is reaped.
  while path.exists() and path.read_bytes():
    assert time.monotonic() < deadline, "the process did not end"
    time.sleep(0.05)


# The many queries do not fit into the buffers between the processes.
@pytest.mark.parametrize("count", [3, 50_000])
def test_a_process_that_hangs_is_ended(built, count, monkeypatch):
  _, directory, blocks = built
  monkeypatch.setattr(isolated, "_SEARCH_SECONDS", 0.5)
  searcher = _loaded(FaissConfig(), directory, blocks)
  os.kill(searcher.pid, signal.SIGSTOP)
  start = time.monotonic()
  with pytest.raises(IndexCrashedError, match="does not answer"):
    searcher.search(queries_of(clustered(count, 2)), 4)
  assert time.monotonic() - start < 30
  assert searcher._process.poll() is not None


def test_what_crashes_while_it_loads_says_so(built, send_on_start):
  _, directory, blocks = built
  send_on_start(signal.SIGKILL)
  with pytest.raises(
    IndexCrashedError, match=r"SIGKILL while it loaded .*faiss"
  ):
    _loaded(FaissConfig(), directory, blocks)


def test_loading_that_hangs_is_ended(built, send_on_start, monkeypatch):
  _, directory, blocks = built
  monkeypatch.setattr(isolated, "_LOAD_SECONDS", 0.2)
  send_on_start(signal.SIGSTOP)
  with pytest.raises(IndexCrashedError, match="does not answer while it"):
    _loaded(FaissConfig(), directory, blocks)
