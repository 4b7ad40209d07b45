"""An index that searches in a process of its own.

A library that crashes there ends a search, and not the run that asked. The two
talk over a socket, in messages of a fixed head and plain arrays. Loading gives
way to the run's steps; searching does not.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np

from realm_jax.indexes.background import in_background
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  IndexCrashedError,
  IndexLoadError,
  MissingLibraryError,
  PathLike,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
)
from realm_jax.indexes.registry import (
  IndexKindError,
  config_from,
  parameters_of,
)

# Most batches of queries go in one piece.
_BUFFER_BYTES = 1 << 22
# A query message: how many vectors, and k. An answer: whether it is an error,
# and how many bytes follow.
_QUERY = struct.Struct("<qq")
_ANSWER = struct.Struct("<qq")
_ERRORS = (IndexLoadError, IndexKindError, MissingLibraryError)


class IsolatedIndex:
  """An index that is loaded and searched in a process of its own.

  The process begins to load at once, so that whoever asked can read checksums
  meanwhile, and ends when this is let go.

  Args:
    config: whose `load` the process calls.
    directory: what it loads.
    blocks: with vectors, of which the process is told the shape alone.
    timeout_seconds: of a search; a process that takes longer hangs.
    load_timeout_seconds: the same of loading.
  """

  needs_vectors = True

  def __init__(
    self,
    config: IndexConfig,
    directory: PathLike,
    blocks: Blocks,
    *,
    timeout_seconds: float = 300.0,
    load_timeout_seconds: float = 3600.0,
  ):
    assert blocks.vectors is not None
    self.kind = config.kind
    self.num_blocks, self.dim = blocks.vectors.shape
    self.report: dict[str, Any] = {}
    self._lock = threading.Lock()
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
      end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    with theirs:
      command = [sys.executable, "-m", __name__, str(theirs.fileno())]
      self._process = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=_environment(),
        # Signals to the group of whoever asks are not for it.
        process_group=0,
      )
    self._socket = ours
    self._close = weakref.finalize(self, _end, self._process, ours)
    wanted = {
      "kind": config.kind,
      "parameters": parameters_of(config, of_host=True),
      "directory": str(directory),
      "shape": [self.num_blocks, self.dim],
      "python_path": sys.path,
    }
    asked = json.dumps(wanted).encode()
    self._directory = directory
    self._search_seconds = timeout_seconds
    ours.settimeout(load_timeout_seconds)
    # What becomes of it, `wait_until_loaded` says.
    with contextlib.suppress(OSError):
      ours.sendall(_ANSWER.pack(0, len(asked)) + asked)

  def wait_until_loaded(self) -> None:
    """Returns when it can be searched, and not before.

    Raises:
      IndexLoadError: the index cannot be loaded.
      IndexCrashedError: the process ended, or hangs, while it loaded.
      MissingLibraryError: its library is not installed.
    """
    try:
      self._answer()
    except IndexCrashedError as error:
      raise IndexCrashedError(
        f"{error} while it loaded {self._directory}"
      ) from error
    except _ERRORS:
      self.close()
      raise
    self._socket.settimeout(self._search_seconds)

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """What the index in the other process finds.

    Raises:
      SearchError: as of the index.
      IndexCrashedError: the process ended, or hangs; so does every later
        search.
    """
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    with self._lock:
      self._ask(_QUERY.pack(len(vectors), k), vectors.data)
      found = self._answer()
    rows, scores = np.split(np.frombuffer(found, np.int32), 2)
    shape = (len(vectors), k)
    return SearchResult(
      rows=rows.reshape(shape), scores=scores.view(np.float32).reshape(shape)
    )

  @property
  def pid(self) -> int:
    """Of the process."""
    return self._process.pid

  def close(self) -> None:
    """Ends the process, and gives its memory back."""
    self._close()
    self._process.wait()

  def _ask(self, head: bytes, body: bytes | memoryview) -> None:
    try:
      self._socket.sendall(head)
      self._socket.sendall(body)
    except OSError as error:
      raise self._crash(error) from error

  def _answer(self) -> bytearray:
    try:
      is_error, size = _ANSWER.unpack(_receive(self._socket, _ANSWER.size))
      body = _receive(self._socket, size)
    except OSError as error:
      raise self._crash(error) from error
    if not is_error:
      return body
    name, _, text = body.decode().partition(":")
    kinds = {kind.__name__: kind for kind in _ERRORS}
    raise kinds.get(name, IndexCrashedError)(text)

  def _crash(self, error: OSError) -> IndexCrashedError:
    """What became of the process, which is ended if it has not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout=0.0 if isinstance(error, TimeoutError) else 5)
    code = self._process.poll()
    if code is None:
      how = "does not answer"
    elif code < 0:
      how = f"ended by {signal.Signals(-code).name}"
    else:
      how = f"ended with exit code {code}"
    self.close()
    return IndexCrashedError(
      f"the process {self.pid} that searches {self.kind} {how}"
    )


def _environment() -> dict[str, str]:
  """Of the process: with huge pages, gigabytes are loaded in half the time."""
  others = os.environ.get("GLIBC_TUNABLES")
  tunables = ":".join(filter(None, (others, "glibc.malloc.hugetlb=1")))
  return {**os.environ, "GLIBC_TUNABLES": tunables}


# Processes that were told to end, until somebody asks what became of them.
_ending: list[subprocess.Popen] = []


def _end(process: subprocess.Popen, connection: socket.socket) -> None:
  """Does not wait, as a step would: gigabytes take the system a while."""
  connection.close()
  process.kill()
  _ending.append(process)
  for other in list(_ending):
    if other.poll() is not None:
      # Another thread may be at it, too.
      with contextlib.suppress(ValueError):
        _ending.remove(other)


def _send(connection: socket.socket, body: bytes) -> None:
  connection.sendall(_ANSWER.pack(0, len(body)))
  connection.sendall(body)


def _receive(connection: socket.socket, size: int) -> bytearray:
  """Exactly so many bytes.

  Raises:
    OSError: the other side is gone, or took too long.
  """
  body = bytearray(size)
  view = memoryview(body)
  while view:
    count = connection.recv_into(view)
    if not count:
      raise ConnectionError("the other side is gone")
    view = view[count:]
  return body


class _Shape:
  """Vectors of which nothing but the shape is known here."""

  dtype = np.dtype(np.float32)

  def __init__(self, shape: tuple[int, int]):
    self.shape = shape

  def __getitem__(self, rows: slice) -> np.ndarray:
    raise IndexLoadError("this process has no vectors")


def _serve(connection: socket.socket) -> None:
  """Loads what is asked for, and answers searches until nobody asks."""
  _, size = _ANSWER.unpack(_receive(connection, _ANSWER.size))
  wanted = json.loads(_receive(connection, size))
  sys.path[:] = wanted["python_path"]
  num_blocks, dim = wanted["shape"]

  def load() -> Index:
    config = config_from(wanted["kind"], wanted["parameters"])
    blocks = Blocks(num_blocks=num_blocks, vectors=_Shape((num_blocks, dim)))
    return config.load(wanted["directory"], blocks)

  try:
    # The library's import, too, would take steps their cores.
    index = in_background(load)
  except _ERRORS as error:
    body = f"{type(error).__name__}:{error}".encode()
    connection.sendall(_ANSWER.pack(1, len(body)) + body)
    return
  _send(connection, b"")
  tokens = np.zeros((0, 1), np.int32)
  while True:
    count, k = _QUERY.unpack(_receive(connection, _QUERY.size))
    body = _receive(connection, 4 * count * dim)
    vectors = np.frombuffer(body, np.float32).reshape(count, dim)
    found = index.search(QueryBatch(token_ids=tokens, vectors=vectors), k)
    _send(connection, found.rows.tobytes() + found.scores.tobytes())


def main(file_descriptor: str) -> None:
  """The process that searches; it ends when whoever asks is gone."""
  # A scheduler may signal every process of a job, and this one is needed until
  # the other is done.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  connection = socket.socket(fileno=int(file_descriptor))
  with contextlib.suppress(ConnectionError):
    _serve(connection)


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  main(sys.argv[1])
