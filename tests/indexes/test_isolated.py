"""An index in a process of its own: same results, and crashes are contained."""

import os
import signal
import subprocess
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


def _built(config, directory):
  blocks = blocks_of(clustered(500, 1))
  index = config.build(blocks, BuildOptions(directory=directory))
  return index, directory, blocks


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  return _built(FaissConfig(), tmp_path_factory.mktemp("isolated") / "faiss")


def test_it_answers_alike_and_ends_with_its_owner(tmp_path):
  config = ScannConfig()
  index, directory, blocks = _built(config, tmp_path / "index")
  searcher = IsolatedIndex(config, directory, blocks)
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
  searcher = IsolatedIndex(FaissConfig(), directory, blocks)
  queries = queries_of(clustered(3, 2))
  here, there = index.search(queries, 4), searcher.search(queries, 4)
  np.testing.assert_array_equal(here.rows, there.rows)
  os.kill(searcher.pid, signal.SIGSEGV)
  for _ in range(2):
    with pytest.raises(IndexCrashedError, match="faiss ended by SIGSEGV"):
      searcher.search(queries, 4)


def test_the_process_ends_when_its_owner_is_gone(built):
  _, directory, blocks = built
  searcher = IsolatedIndex(FaissConfig(), directory, blocks)
  # The kernel closes it for an owner that is killed.
  searcher._connection.close()
  assert searcher._process.wait(timeout=20) == 0


def test_a_process_that_hangs_is_ended(built, monkeypatch):
  _, directory, blocks = built
  monkeypatch.setattr(isolated, "_SEARCH_SECONDS", 0.5)
  searcher = IsolatedIndex(FaissConfig(), directory, blocks)
  os.kill(searcher.pid, signal.SIGSTOP)
  # So many queries do not fit into the buffers between the processes.
  with pytest.raises(IndexCrashedError, match="does not answer"):
    searcher.search(queries_of(clustered(50_000, 2)), 4)
  assert searcher._process.poll() is not None


@pytest.mark.parametrize(
  "number, what",
  [
    (signal.SIGKILL, "SIGKILL while it loaded"),
    (signal.SIGSTOP, "does not answer while it"),
  ],
)
def test_what_crashes_or_hangs_while_it_loads_says_so(
  built, monkeypatch, number, what
):
  _, directory, blocks = built
  start = subprocess.Popen

  def started(*arguments, **settings):
    process = start(*arguments, **settings)
    process.send_signal(number)
    return process

  monkeypatch.setattr(isolated.subprocess, "Popen", started)
  if number == signal.SIGSTOP:
    monkeypatch.setattr(isolated, "_LOAD_SECONDS", 0.2)
  with pytest.raises(IndexCrashedError, match=what):
    IsolatedIndex(FaissConfig(), directory, blocks)
