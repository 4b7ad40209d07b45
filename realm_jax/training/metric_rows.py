"""The metrics of every step of a run, as lines of JSON.

On a disk, there is one file, `metrics.jsonl`. Object stores cannot append, so
the folder `metrics` has a file for each checkpoint, named after its first step.
`read_rows` reads both, also if a MODEL_DIR was copied between them.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etils import epath

from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.json_files import json_lines
from realm_jax.storage.paths import is_remote, list_names, read_bytes

_FILE = "metrics.jsonl"
_PARTS = "metrics"
_SUFFIX = ".jsonl"
# Number of parts to read at the same time.
_READERS = 16

# The metrics of a step, and its number: `step`.
Row = dict[str, Any]


class Records:
  """Adds whole records to a file.

  Each flush writes the records since the last one; on an object store to a new
  file, which begins with the header. Records that cannot be written, for
  example on a full disk, stay in memory and are written by a later flush.
  """

  def __init__(self, path: Callable[[], epath.Path], *, header: bytes = b""):
    self._path = path
    self._header = self._pending = header

  def add(self, record: bytes) -> None:
    """Adds a record, which readers see after the next `flush`."""
    self._pending += record

  def flush(self) -> None:
    """Makes all records visible to readers.

    Raises:
      OSError: They could not be written yet.
    """
    if self._pending in (b"", self._header):
      return
    path = self._path()
    if is_remote(path):
      with atomic_file(path) as partial:
        partial.write_bytes(self._pending)
      self._pending = self._header
      return
    path.parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("ab", buffering=0) as file:
      size, rest = file.tell(), memoryview(self._pending)
      try:
        while rest:
          rest = rest[file.write(rest) :]
      except OSError:
        with contextlib.suppress(OSError):
          file.truncate(size)
        raise
    self._pending = b""


class MetricRows(Records):
  """Adds rows to the metrics of a run with `start_step` completed steps.

  The first flush removes rows of later steps: they are from after the last
  checkpoint of an earlier process, and are repeated.
  """

  def __init__(self, model_dir: epath.PathLike, *, start_step: int):
    directory, self._first_step = epath.Path(model_dir), start_step + 1
    self._remove: Callable[[], None] | None = functools.partial(
      _remove_rows_after, start_step, directory
    )
    name = _PARTS + "/{:09d}" + _SUFFIX if is_remote(model_dir) else _FILE
    super().__init__(lambda: directory / name.format(self._first_step))

  def add_row(self, row: Mapping[str, Any]) -> None:
    """Adds a row, as `add` does."""
    if not self._pending:
      self._first_step = row["step"]
    self.add(f"{json.dumps(row)}\n".encode())

  def flush(self) -> None:
    if self._remove is not None:
      self._remove()
      self._remove = None
    super().flush()


def _remove_rows_after(step: int, directory: epath.Path) -> None:
  """Removes the rows of later steps, and a truncated row."""
  parts = _parts(directory)
  for first in [first for first in parts if first > step]:
    parts.pop(first).unlink()
  for path in (*[*parts.values()][-1:], directory / _FILE):
    if not path.exists():
      continue
    lines = read_bytes(path).splitlines()
    kept = [row for row in _parsed(lines) if row["step"] <= step]
    # A run that is killed at this point must not lose its earlier rows.
    if len(kept) < len(lines):
      with json_lines(path) as write:
        for row in kept:
          write(row)


def read_rows(model_dir: epath.PathLike) -> list[Row]:
  """Returns the rows of a run, which may still be written, by step."""
  directory = epath.Path(model_dir)
  with ThreadPoolExecutor(_READERS) as pool:
    contents = list(pool.map(read_bytes, _parts(directory).values()))
  with contextlib.suppress(FileNotFoundError):
    contents.append(read_bytes(directory / _FILE))
  rows = [row for text in contents for row in _parsed(text.splitlines())]
  by_step = {row["step"]: row for row in rows}
  return [by_step[step] for step in sorted(by_step)]


def _parts(directory: epath.Path) -> dict[int, epath.Path]:
  """Returns the files of the folder by their first step, in its order."""
  folder = directory / _PARTS
  parts = {
    int(stem): folder / name
    for name in list_names(folder)
    if name.endswith(_SUFFIX) and (stem := name[: -len(_SUFFIX)]).isdecimal()
  }
  return dict(sorted(parts.items()))


def _parsed(lines: Sequence[bytes]) -> Iterator[Row]:
  """Yields the rows of a file, until one that is still being written."""
  for line in lines:
    try:
      yield json.loads(line)
    except json.JSONDecodeError:
      return
