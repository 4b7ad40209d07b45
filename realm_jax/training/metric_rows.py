"""The metrics of every step of a run, as lines of JSON.

On a disk they are one file, `metrics.jsonl`. On an object store, where nothing
can be appended, those of each checkpoint are a file of the folder `metrics`,
whose name is their first step. `read_rows` reads both.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etils import epath

from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.json_files import json_lines
from realm_jax.storage.paths import is_remote, objects_below, read_bytes

_FILE = "metrics.jsonl"
_PARTS = "metrics"
_SUFFIX = ".jsonl"
# Parts that are read at the same time.
_READERS = 16
# Bytes that are gathered before they are written.
_BUFFER_BYTES = 8192

# The metrics of a step, and its number: `step`.
Row = dict[str, Any]


class AppendedFile:
  """A file to which records are appended, none of them in part.

  A record that cannot be written, such as on a full disk, is kept in memory
  and written with later ones.
  """

  def __init__(self, path: Path):
    self._file = path.open("ab", buffering=0)
    self._size = self._file.tell()
    self._pending = bytearray()
    # Number of pending bytes from which on they are written.
    self._limit = _BUFFER_BYTES

  def write(self, record: bytes) -> None:
    """Adds a record, which readers see after the next `flush`.

    Raises:
      OSError: The records up to this one could not be written yet.
    """
    self._pending += record
    if len(self._pending) >= self._limit:
      self.flush()

  def flush(self) -> None:
    """Makes all records visible to readers.

    Raises:
      OSError: They could not be written yet.
    """
    rest = memoryview(bytes(self._pending))
    # After a failure, the next record is not yet a reason to try again.
    self._limit = len(rest) + _BUFFER_BYTES
    try:
      while rest:
        rest = rest[self._file.write(rest) :]
    except OSError:
      with contextlib.suppress(OSError):
        self._file.truncate(self._size)
      raise
    self._size += len(self._pending)
    self._pending.clear()
    self._limit = _BUFFER_BYTES

  def close(self) -> None:
    """Flushes, and closes the file.

    Raises:
      OSError: Records could not be written, and are lost.
    """
    try:
      self.flush()
    finally:
      self._file.close()


def open_rows(
  model_dir: epath.PathLike, *, start_step: int
) -> "RowsOnDisk | RowsInBucket":
  """Opens the rows of a run of which `start_step` steps are done.

  Rows of later steps are removed: they are from a run that ended after its last
  checkpoint, and those steps are repeated.
  """
  directory = epath.Path(model_dir)
  if is_remote(directory):
    return RowsInBucket(directory, start_step)
  return RowsOnDisk(directory, start_step)


def read_rows(model_dir: epath.PathLike) -> list[Row]:
  """Returns the rows of a run, which may still be written, by step."""
  return list(_rows(epath.Path(model_dir)))


class RowsOnDisk(AppendedFile):
  """Rows in a file on a disk."""

  def __init__(self, directory: epath.Path, start_step: int):
    path = Path(directory) / _FILE
    # Those of a MODEL_DIR that was copied from an object store are there, too.
    kept = list(_rows(directory, until=start_step))
    # A run that is killed at this point must not lose its earlier rows.
    with atomic_text_file(path) as file:
      file.writelines(json.dumps(row) + "\n" for row in kept)
    for part in _parts(directory).values():
      part.unlink()
    super().__init__(path)

  def write_row(self, row: Mapping[str, Any]) -> None:
    """Adds a row, which readers see after the next `flush`.

    Raises:
      OSError: The rows up to this one could not be written yet.
    """
    self.write(f"{json.dumps(row)}\n".encode())


class RowsInBucket:
  """Rows in a new file of an object store for each `flush`."""

  def __init__(self, directory: epath.Path, start_step: int):
    self._folder = directory / _PARTS
    self._rows: list[Mapping[str, Any]] = []
    parts = _parts(directory)
    for first in [first for first in parts if first > start_step]:
      parts.pop(first).unlink()
    if parts:
      _shorten(parts[max(parts)], start_step)
    if (directory / _FILE).exists():
      _shorten(directory / _FILE, start_step)

  def write_row(self, row: Mapping[str, Any]) -> None:
    """Adds a row, which readers see after the next `flush`."""
    self._rows.append(dict(row))

  def flush(self) -> None:
    """Makes all rows visible to readers; none is lost if that fails."""
    if not self._rows:
      return
    name = f"{self._rows[0]['step']:09d}{_SUFFIX}"
    with json_lines(self._folder / name) as write:
      for row in self._rows:
        write(row)
    self._rows.clear()

  def close(self) -> None:
    """Flushes."""
    self.flush()


def _shorten(path: epath.Path, until: int) -> None:
  """Removes the rows of later steps from a file."""
  rows = list(_parsed(path.read_bytes()))
  kept = [row for row in rows if row["step"] <= until]
  if len(kept) < len(rows):
    with json_lines(path) as write:
      for row in kept:
        write(row)


def _rows(directory: epath.Path, *, until: int | None = None) -> Iterator[Row]:
  """Yields the rows of all files; those of a step that was repeated, once."""
  last = -1
  for content in _contents(directory):
    for row in _parsed(content):
      if until is not None and row["step"] > until:
        return
      if row["step"] > last:
        last = row["step"]
        yield row


def _contents(directory: epath.Path) -> Iterator[bytes]:
  paths = list(_parts(directory).values())
  with contextlib.suppress(FileNotFoundError):
    yield read_bytes(directory / _FILE)
  with ThreadPoolExecutor(_READERS) as pool:
    yield from pool.map(read_bytes, paths)


def _parts(directory: epath.Path) -> dict[int, epath.Path]:
  """Returns the files of the folder by their first step, in its order."""
  folder = directory / _PARTS
  if is_remote(directory):
    names = list(objects_below(folder))
  else:
    names = [path.name for path in Path(folder).glob(f"*{_SUFFIX}")]
  found = {
    int(stem): folder / name
    for name in names
    if name.endswith(_SUFFIX) and (stem := name[: -len(_SUFFIX)]).isdecimal()
  }
  return dict(sorted(found.items()))


def _parsed(content: bytes) -> Iterator[Row]:
  """Yields the rows of a file, until one that is still being written."""
  for line in content.splitlines():
    try:
      yield json.loads(line)
    except json.JSONDecodeError:
      return
