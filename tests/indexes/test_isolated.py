"""An index in a process of its own: same results, and its end is an error."""

import functools
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from realm_jax.indexes import isolated
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.hybrid import HybridConfig
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  Blocks,
  IndexCrashedError,
  QueryBatch,
  SearchError,
)
from tests.indexes.clustered import clustered

pytestmark = pytest.mark.slow


_WORDS = np.random.default_rng(0).integers(5, 60, (503, 6)).astype(np.int32)
_BLOCKS = Blocks(500, clustered(500, 1), lambda row: _WORDS[row], 60)
_QUERIES = QueryBatch(_WORDS[500:], clustered(3, 2))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
  """Starts the process of an index of FAISS."""
  directory = tmp_path_factory.mktemp("isolated") / "faiss"
  FaissConfig().build(_BLOCKS, directory)
  return functools.partial(IsolatedIndex, FaissConfig(), directory, _BLOCKS)


def test_it_answers_alike_and_ends_with_its_owner(tmp_path):
  # Both the vectors and the words of a query reach the process.
  config, directory = HybridConfig(dense="scann"), tmp_path / "index"
  index = config.build(_BLOCKS, directory)
  searcher = IsolatedIndex(config, directory, _BLOCKS)
  # ScaNN is imported without TensorFlow, which takes seconds.
  assert "/tensorflow/" not in Path(f"/proc/{searcher.pid}/maps").read_text()
  # A terminal or scheduler signals both; the run ends by itself.
  for number in (signal.SIGINT, signal.SIGTERM):
    searcher._process.send_signal(number)
  for k in (1, 8, 500):
    here, there = index.search(_QUERIES, k), searcher.search(_QUERIES, k)
    np.testing.assert_array_equal(here.rows, there.rows)
    np.testing.assert_array_equal(here.scores, there.scores)
  with pytest.raises(SearchError, match="k=501"):
    searcher.search(_QUERIES, 501)
  child = searcher._process
  del searcher
  assert child.wait(timeout=10) is not None


def test_a_crash_is_reported_and_later_searches_fail(start):
  searcher = start()
  os.kill(searcher.pid, signal.SIGSEGV)
  for _ in range(2):
    with pytest.raises(IndexCrashedError, match="faiss ended by SIGSEGV"):
      searcher.search(_QUERIES, 4)


def test_a_process_that_hangs_is_ended(start, monkeypatch):
  monkeypatch.setattr(isolated, "_SEARCH_SECONDS", 0.5)
  searcher = start()
  os.kill(searcher.pid, signal.SIGSTOP)
  # So many queries do not fit into the buffers between the processes.
  with pytest.raises(IndexCrashedError, match="does not answer"):
    searcher.search(QueryBatch.of_vectors(clustered(5_000, 2)), 4)
  assert searcher._process.poll() is not None


@pytest.mark.parametrize(
  "number, what",
  [
    (signal.SIGKILL, "SIGKILL while it loaded"),
    (signal.SIGSTOP, "does not answer while it"),
  ],
)
def test_what_crashes_or_hangs_while_it_loads_says_so(
  start, monkeypatch, number, what
):
  class Started(subprocess.Popen):
    def __init__(self, *arguments, **settings):
      super().__init__(*arguments, **settings)
      self.send_signal(number)

  monkeypatch.setattr(isolated.subprocess, "Popen", Started)
  if number == signal.SIGSTOP:
    monkeypatch.setattr(isolated, "_LOAD_SECONDS", 0.2)
  with pytest.raises(IndexCrashedError, match=what):
    start()
