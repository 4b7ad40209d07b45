"""An index that searches in a separate process.

ScaNN holds the interpreter's lock while it loads, for 16 seconds at 13 million
blocks. In another process, that stops no step and no signal handler of the run.
The processes talk over a pipe of `multiprocessing`: pickles are safe there,
since both ends are ours and the pipe has no name. The other process imports no
TensorFlow, so it starts fast; it loads at a low priority beside the run's
steps, and searches at a normal one. If it dies, the run ends.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  IndexCrashedError,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.storage.staging import lower_thread_priority

# A process that takes longer counts as hanging and is killed.
_SEARCH_SECONDS = 300.0
_LOAD_SECONDS = 3600.0


class IsolatedIndex(Index):
  """An index that is loaded and searched in a separate process.

  The process calls `config.load` and gets only the shape of the vectors. It
  ends when this object is closed or garbage-collected.

  Raises the errors of `IndexConfig.load`, and:
    IndexCrashedError: The process ended, or hangs, while it loaded.
  """

  needs_vectors = True

  def __init__(self, config: IndexConfig, directory: Path, blocks: Blocks):
    self.kind = config.kind
    shape = self.num_blocks, self.dim = blocks.embedded().shape
    self._lock = threading.Lock()
    self._connection, theirs = multiprocessing.Pipe()
    # Huge pages halve the time to load.
    tunables = [os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"]
    environment = {"GLIBC_TUNABLES": ":".join(filter(None, tunables))}
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        # Signals to the caller's process group should not reach it.
        process_group=0,
      )
    self._close = weakref.finalize(self, _end, self._process, self._connection)
    with self._exchange(_LOAD_SECONDS, f" while it loaded {directory}"):
      self._connection.send(sys.path)
      self._connection.send((config, directory, shape))
      error = self._connection.recv()
    if error is not None:
      self.close()
      raise error

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Searches in the other process.

    Raises:
      IndexCrashedError: The process ended, or hangs; so do later searches.
    """
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    queries = dataclasses.replace(queries, vectors=vectors)
    with self._lock, self._exchange(_SEARCH_SECONDS):
      self._connection.send((queries, k))
      return self._connection.recv()

  @property
  def pid(self) -> int:
    """Id of the process."""
    return self._process.pid

  def close(self) -> None:
    """Ends the process and waits until its memory is free."""
    self._close()
    self._process.wait()

  @contextlib.contextmanager
  def _exchange(self, seconds: float, when: str = "") -> Iterator[None]:
    """Kills the process after a timeout; reports its end as an error."""
    hangs = threading.Event()

    def kill() -> None:
      hangs.set()
      self._process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
      yield
    except (EOFError, OSError) as error:
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(timeout=5)
      self.close()
      code = self._process.returncode
      if hangs.is_set():
        what = "does not answer"
      elif code < 0:
        what = f"ended by {signal.Signals(-code).name}"
      else:
        what = f"ended with exit code {code}"
      raise IndexCrashedError(
        f"the process {self.pid} that searches {self.kind} {what}{when}"
      ) from error
    finally:
      timer.cancel()


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
  """Kills without waiting: freeing gigabytes takes the system a while."""
  connection.close()
  process.kill()
  # No thread can be started while the interpreter ends, and none is needed.
  with contextlib.suppress(RuntimeError):
    threading.Thread(target=process.wait, daemon=True).start()


def _serve(connection: Connection) -> None:
  """Loads the index and answers searches until the caller's end closes."""
  # A scheduler may signal every process of a job, but the caller needs this
  # process until the caller itself ends.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  sys.path[:] = connection.recv()
  config, directory, (num_blocks, dim) = connection.recv()
  # Only the vectors' shape is known here; this array takes 4 bytes.
  vectors = np.broadcast_to(np.float32(np.nan), (num_blocks, dim))
  blocks = Blocks(num_blocks, vectors)
  try:
    # Even importing the library would take cores from the run's steps.
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as thread:
      index = thread.submit(config.load, directory, blocks).result()
  except RealmError as error:
    connection.send(error)
    return
  connection.send(None)
  while True:
    connection.send(index.search(*connection.recv()))


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  with contextlib.suppress(EOFError, ConnectionError):
    _serve(Connection(int(sys.argv[1])))
