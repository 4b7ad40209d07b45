"""Lines of an evaluation in part files, so that a killed one can continue.

    OUTPUT_DIR/evaluation_parts/DIGEST/evaluation.json   what is evaluated
    OUTPUT_DIR/evaluation_parts/DIGEST/1-00007.jsonl     lines of process 1
    OUTPUT_DIR/evaluation_parts/DIGEST/1-00007.json      and their scores

DIGEST is the checksum of `evaluation.json`, so that parts of two evaluations
never mix. A part is complete once it has its scores. Parts are separate files,
because object stores cannot append to a file.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int64

from realm_jax.errors import RealmError
from realm_jax.evaluation.scores import Line, Scores, joined, line_scores
from realm_jax.snapshots.manifest import json_checksum
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.json_files import JsonValue, json_lines, write_json
from realm_jax.storage.line_files import lines_of
from realm_jax.storage.paths import list_names, read_bytes

FOLDER = "evaluation_parts"
_DESCRIPTION = "evaluation.json"
# Upper bounds on a part, and thus on the work that a killed process loses.
_MAX_LINES, _MAX_SECONDS = 1000, 30.0


class Part(NamedTuple):
  """Scores of some questions.

  Attributes:
    name: Name of the part's files, without suffix.
    positions: Positions among all questions, rising.
    scores: Scores in the same order.
    state: Numbers from which the evaluation continues after this part.
  """

  name: str
  positions: Int64[np.ndarray, " n"]
  scores: Scores
  state: Sequence[int]


def open_folder(
  output_dir: epath.Path, description: Mapping[str, JsonValue]
) -> str:
  """Makes the folder for the parts of an evaluation, and returns its name.

  Folders of other evaluations are removed.
  """
  digest, parent = json_checksum(description)[:16], output_dir / FOLDER
  for other in [parent / name for name in list_names(parent) if name != digest]:
    differing = "what is not known"
    with contextlib.suppress(OSError, ValueError):
      earlier = json.loads(read_bytes(other / _DESCRIPTION))
      names = sorted(earlier.keys() | description.keys())
      names = [n for n in names if earlier.get(n) != description.get(n)]
      differing = ", ".join(names)
    logging.info(
      "removing %s: parts of an evaluation that differs in %s", other, differing
    )
    other.rmtree(missing_ok=True)
  if not (path := parent / digest / _DESCRIPTION).exists():
    write_json(path, description)
  return digest


def read_parts(
  folder: epath.Path, process: int, numbers: Iterable[int]
) -> Iterator[Part]:
  """Yields parts of a process, by their numbers.

  Raises:
    RealmError: A part is missing on this host.
  """
  for number in numbers:
    name = f"{process}-{number:05d}"
    try:
      fields = json.loads(read_bytes(folder / f"{name}.json"))
    except FileNotFoundError as error:
      raise _lacking(folder, f"{name}.json") from error
    scores = {name: np.array(v) for name, v in fields["scores"].items()}
    positions = np.array(fields["positions"], np.int64)
    yield Part(name, positions, scores, fields["state"])


def _lacking(folder: epath.Path, name: str) -> RealmError:
  return RealmError(
    f"{folder} lacks {name}, which a process has written; name an OUTPUT_DIR "
    "that all hosts share, and that no other evaluation uses at the same time"
  )


class Parts:
  """The lines of this process; only their scores stay in memory.

  Args:
    folder: Folder of parts; existing parts of the process are used. None drops
      the lines.
    process: Number of this process.
    scored: Function that returns the scores of lines.

  Attributes:
    folder: Folder of parts.
    parts: Parts so far.
    state: Numbers from which the evaluation continues; empty at the start.

  Raises:
    RealmError: The folder, which process 0 made, is missing on this host.
  """

  def __init__(
    self,
    folder: epath.Path | None,
    process: int,
    scored: Callable[[Sequence[Line]], Scores] = line_scores,
  ):
    self.parts: list[Part] = []
    self.folder, self._process, self._scored = folder, process, scored
    self._waiting: dict[int, Line] = {}
    self.state: Sequence[int] = ()
    self._since = time.monotonic()
    if folder is None:
      return
    # Checked before anything is computed.
    if _DESCRIPTION not in (names := {*list_names(folder)}):
      raise RealmError(
        f"{folder}, which process 0 has made, is not on this host; name an "
        "OUTPUT_DIR on a file system or in a bucket that all hosts share"
      )
    is_own = re.compile(rf"{process}-\d+\.json").fullmatch
    written = range(sum(map(bool, map(is_own, names))))
    self.parts += read_parts(folder, process, written)
    if self.parts:
      self.state = self.parts[-1].state
      number = sum(len(part.positions) for part in self.parts)
      logging.info("continuing after %d questions in %s", number, folder)

  def add(self, lines: Mapping[int, Line], state: Sequence[int]) -> None:
    """Adds the lines of a batch, by their positions among all questions.

    The evaluation can continue from `state` after them.
    """
    self._waiting |= lines
    self.state = state
    seconds = time.monotonic() - self._since
    if len(self._waiting) >= _MAX_LINES or seconds >= _MAX_SECONDS:
      self.flush()

  def flush(self) -> None:
    """Writes the pending lines as a part.

    Raises:
      OSError: The disk is full, or the folder cannot be written to.
    """
    if self._waiting:
      positions = sorted(self._waiting)
      lines = [self._waiting[position] for position in positions]
      name, scores = (
        f"{self._process}-{len(self.parts):05d}",
        self._scored(lines),
      )
      if self.folder is not None:
        with json_lines(self.folder / f"{name}.jsonl") as write:
          for line in lines:
            write(line)
        listed: JsonValue = {n: values.tolist() for n, values in scores.items()}
        with json_lines(self.folder / f"{name}.json") as write:
          write({"positions": positions, "scores": listed, "state": self.state})
      numbers = np.array(positions, np.int64)
      self.parts.append(Part(name, numbers, scores, self.state))
      self._waiting = {}
    self._since = time.monotonic()


def merge(
  parts: Sequence[Part], folder: epath.Path | None, name: str | None
) -> Scores:
  """Returns the scores of all questions in order, and writes their lines.

  The lines are written to the file `name` in OUTPUT_DIR, if a name is given and
  the parts have a folder there. A part is open only from its first line to its
  last, so that few are open at once.

  Raises:
    RealmError: A part is missing on this host.
    OSError: The disk is full, or the directory cannot be written to.
  """
  sizes = [len(part.positions) for part in parts]
  order = np.argsort(np.concatenate([part.positions for part in parts]))
  if folder is not None and name is not None:
    owners = np.repeat(np.arange(len(parts)), sizes)[order]
    opened: dict[int, Iterator[bytes]] = {}
    path = folder.parent.parent / name
    with atomic_file(path) as partial, partial.open("wb") as file:
      for owner in owners:
        if owner not in opened:
          opened[owner] = lines_of(folder / f"{parts[owner].name}.jsonl")
        try:
          file.write(next(opened[owner]))
        except FileNotFoundError as error:
          raise _lacking(folder, f"{parts[owner].name}.jsonl") from error
        sizes[owner] -= 1
        if not sizes[owner]:
          del opened[owner]
  return {
    name: values[order]
    for name, values in joined([part.scores for part in parts]).items()
  }
