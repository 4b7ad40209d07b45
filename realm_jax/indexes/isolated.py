"""An index that searches in a process of its own.

A library that crashes there fails a search instead of ending the run. The
processes talk over a pipe of `multiprocessing.connection`: small objects as
pickles, which is safe since both ends are ours and the pipe has no name, and
arrays as plain bytes. The other process imports no TensorFlow, so it starts
fast; it loads at a low priority beside the run's steps, and searches at a
normal one.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  IndexCrashedError,
  IndexLoadError,
  LibraryError,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.storage.staging import lower_thread_priority

# Socket buffer, large enough that most batches of queries are sent at once.
_BUFFER_BYTES = 1 << 22
# A process that takes longer counts as hanging and is killed.
_SEARCH_SECONDS = 300.0
_LOAD_SECONDS = 3600.0


class IsolatedIndex(Index):
  """An index that is loaded and searched in a process of its own.

  The process starts to load at once, so that the caller can verify checksums
  meanwhile: it calls `config.load` and gets only the shape of the vectors. It
  ends when this object is closed or garbage-collected.
  """

  needs_vectors = True

  def __init__(self, config: IndexConfig, directory: Path, blocks: Blocks):
    self.kind = config.kind
    shape = self.num_blocks, self.dim = blocks.embedded().shape
    self._directory = directory
    self._lock = threading.Lock()
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
      end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    _set_timeout(ours, _SEARCH_SECONDS)
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=_environment(),
        # Signals to the caller's process group should not reach it.
        process_group=0,
      )
    self._connection = Connection(ours.detach())
    self._close = weakref.finalize(self, _end, self._process, self._connection)
    # If this fails, `wait_until_loaded` says why.
    with contextlib.suppress(OSError):
      self._connection.send(sys.path)
      self._connection.send((config, directory, shape))

  def wait_until_loaded(self) -> None:
    """Waits until the index can be searched.

    Raises:
      IndexCrashedError: The process ended, or hangs, while it loaded.
      IndexLoadError, LibraryError: As `IndexConfig.load`.
    """
    with self._exchange(f" while it loaded {self._directory}"):
      self._await_answer(_LOAD_SECONDS)
      error = self._connection.recv()
    if error is not None:
      self.close()
      raise error

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Searches in the other process.

    Raises:
      SearchError: As in `Index.search`.
      IndexCrashedError: The process ended, or hangs; so do later searches.
    """
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    shape = (len(vectors), k)
    with self._lock, self._exchange():
      self._connection.send(shape)
      _send(self._connection, vectors)
      self._await_answer(_SEARCH_SECONDS)
      rows = _receive(self._connection, shape, np.int32)
      scores = _receive(self._connection, shape, np.float32)
    return SearchResult(rows=rows, scores=scores)

  @property
  def pid(self) -> int:
    """Id of the process."""
    return self._process.pid

  def close(self) -> None:
    """Ends the process and waits until its memory is free."""
    self._close()
    self._process.wait()

  def _await_answer(self, seconds: float) -> None:
    if not self._connection.poll(seconds):
      raise TimeoutError

  @contextlib.contextmanager
  def _exchange(self, when: str = "") -> Iterator[None]:
    """Turns an error of the connection into an `IndexCrashedError`."""
    try:
      yield
    except (EOFError, OSError) as error:
      # A blocked read or write raises BlockingIOError at the socket's timeout.
      hangs = isinstance(error, TimeoutError | BlockingIOError)
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(timeout=0 if hangs else 5)
      code = self._process.returncode
      self.close()
      if code is None:
        what = "does not answer"
      elif code < 0:
        what = f"ended by {signal.Signals(-code).name}"
      else:
        what = f"ended with exit code {code}"
      raise IndexCrashedError(
        f"the process {self.pid} that searches {self.kind} {what}{when}"
      ) from error


def _set_timeout(end: socket.socket, seconds: float) -> None:
  """Limits how long a read or write may block, also within a message."""
  timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
  end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
  end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def _environment() -> dict[str, str]:
  """Returns the process's environment; huge pages halve the time to load."""
  others = os.environ.get("GLIBC_TUNABLES")
  tunables = ":".join(filter(None, (others, "glibc.malloc.hugetlb=1")))
  return {**os.environ, "GLIBC_TUNABLES": tunables}


# Processes that were killed and are not reaped yet.
_killed: list[subprocess.Popen[bytes]] = []


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
  """Kills without waiting: freeing gigabytes takes the system a while."""
  connection.close()
  process.kill()
  _killed.append(process)
  for other in list(_killed):
    if other.poll() is not None:
      # Another thread may have removed it.
      with contextlib.suppress(ValueError):
        _killed.remove(other)


def _send(connection: Connection, array: Shaped[np.ndarray, "m n"]) -> None:
  """Sends the bytes of an array, without a copy where it is contiguous."""
  flat = np.ascontiguousarray(array).reshape(-1)
  connection.send_bytes(flat.view(np.uint8).data)


def _receive(
  connection: Connection, shape: tuple[int, int], dtype: type[np.generic]
) -> Shaped[np.ndarray, "m n"]:
  array = np.empty(shape, dtype)
  connection.recv_bytes_into(array.reshape(-1).view(np.uint8))
  return array


def _serve(connection: Connection) -> None:
  """Loads the index and answers searches until the connection closes."""
  sys.path[:] = connection.recv()
  config, directory, (num_blocks, dim) = connection.recv()
  # Of the vectors only the shape is known here: this array takes 4 bytes.
  vectors = np.broadcast_to(np.float32(np.nan), (num_blocks, dim))
  blocks = Blocks(num_blocks, vectors)
  try:
    # The library's import, too, would take cores from the run's steps.
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as thread:
      index = thread.submit(config.load, directory, blocks).result()
  except (IndexLoadError, LibraryError) as error:
    connection.send(error)
    return
  connection.send(None)
  while True:
    count, k = connection.recv()
    queries = _receive(connection, (count, dim), np.float32)
    found = index.search(QueryBatch.of_vectors(queries), k)
    _send(connection, found.rows)
    _send(connection, found.scores)


def main(file_descriptor: str) -> None:
  """Runs the process that searches, which ends when its caller does."""
  # A scheduler may signal every process of a job, and the caller needs this
  # one until it ends.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  with contextlib.suppress(EOFError, ConnectionError):
    _serve(Connection(int(file_descriptor)))


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  main(sys.argv[1])
