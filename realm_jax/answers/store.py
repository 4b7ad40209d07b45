"""Stores which blocks contain which answers, so they are searched only once.

answers.json     manifest, written last
offsets.npy      the rows of answer i are rows[offsets[i]:offsets[i + 1]]
rows.npy         rows of blocks, sorted for each answer

An Aho-Corasick automaton reads each byte once, whatever the number of answers.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation
from etils import epath
from jaxtyping import Bool, Int

from realm_jax.console import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.workers import map_in_processes
from realm_jax.errors import RealmError
from realm_jax.storage.atomic import (
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.json_files import write_json
from realm_jax.storage.local_disk import create_mapped_array, save_array
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.storage.staging import FileRecord, StagedFiles, record_files

_MANIFEST = "answers.json"
_FORMAT_VERSION = 2
# Blocks that are searched in one call, which returns a Python object for each
# occurrence.
_BLOCKS_PER_CALL = 512
# Blocks whose occurrences are sorted and written together.
_BLOCKS_PER_PART = 16_384
# Number of blocks that makes it worth starting another process.
_BLOCKS_PER_WORKER = 20_000
_MAX_WORKERS = 16


class AnswersError(RealmError):
  """A store of answers that is missing or damaged, or cannot be built."""


def automaton_of(answers: Sequence[str]) -> BytesAhoCorasick:
  """Returns an automaton that finds one or more distinct answers."""
  return BytesAhoCorasick(
    [text.encode() for text in answers],
    # Other implementations need a gigabyte, or twice the time.
    implementation=Implementation.ContiguousNFA,
  )


def find_answers(
  automaton: BytesAhoCorasick, corpus: Corpus, rows: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
  """Finds the blocks that contain the exact characters of answers.

  Returns:
    The number of the answer and the position in `rows` of the block, for each
    answer in a block, sorted by both.
  """
  parts = [np.zeros(0, np.int64)]
  for first in range(0, len(rows), _BLOCKS_PER_CALL):
    # Texts are concatenated; text i ends at offsets[i + 1].
    texts = corpus.bodies_utf8(rows[first : first + _BLOCKS_PER_CALL])
    offsets = np.cumsum([0, *map(len, texts)])
    matches = automaton.find_matches_as_indexes(
      b"".join(texts), overlapping=True
    )
    # Four times as fast as np.array.
    flat = np.fromiter(
      itertools.chain.from_iterable(matches), np.int64, 3 * len(matches)
    )
    answers, starts, limits = flat.reshape(-1, 3).T
    places = np.searchsorted(offsets, starts, side="right") - 1
    inside = limits <= offsets[places + 1]
    parts.append(answers[inside] * len(rows) + first + places[inside])
  # np.unique uses hashes, which takes ten times as long.
  keys = np.sort(np.concatenate(parts))
  return np.divmod(keys[np.diff(keys, prepend=-1) != 0], max(len(rows), 1))


class AnswerStore:
  """The rows of the blocks that contain each answer, memory-mapped.

  Opening a store verifies all of its files.

  Raises:
    AnswersError: The store is missing, damaged, or for other answers or blocks.
  """

  def __init__(
    self, directory: epath.PathLike, corpus: Corpus, answers: Sequence[str]
  ):
    source, key = epath.Path(directory), store_key(corpus, answers)
    self._numbers = {answer: number for number, answer in enumerate(answers)}
    try:
      manifest = json.loads((source / _MANIFEST).read_text())
      identity = manifest["format_version"], manifest["key"]
      files = manifest["files"].items()
      records = [FileRecord.from_entry(*file) for file in files]
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise AnswersError(f"there is no whole store at {source}") from error
    if identity != (_FORMAT_VERSION, key):
      raise AnswersError(f"{source} is of another format or of other answers")
    staged = StagedFiles(source, records, error=AnswersError)
    local = staged.get([record.path for record in records])
    self._offsets, self._rows = (
      np.load(local / name, mmap_mode="r").view(np.ndarray)
      for name in ("offsets.npy", "rows.npy")
    )

  def contained(
    self, answer: str, rows: Int[np.ndarray, " n"]
  ) -> Bool[np.ndarray, " n"] | None:
    """Returns which blocks contain an answer; None if it is not stored."""
    if (number := self._numbers.get(answer)) is None:
      return None
    hits = self._rows[self._offsets[number] : self._offsets[number + 1]]
    return np.searchsorted(hits, rows, "right") > np.searchsorted(hits, rows)


def store_key(corpus: Corpus, answers: Sequence[str]) -> str:
  """Returns a digest of a store's blocks and answers, which identifies it."""
  of_answers = hashlib.sha256(json.dumps(answers).encode()).hexdigest()
  text = f"{corpus.fingerprint} {of_answers}"
  return hashlib.sha256(text.encode()).hexdigest()


def build_store(
  directory: epath.PathLike, corpus: Corpus, answers: Sequence[str]
) -> None:
  """Builds the store of a corpus and distinct answers; replaces an earlier one.

  The store appears complete or not at all. Memory use does not grow with the
  number of blocks.

  Raises:
    AnswersError: A process failed, or the disk is full.
  """
  cores = len(os.sched_getaffinity(0))
  useful = corpus.num_blocks // _BLOCKS_PER_WORKER
  num_workers = max(min(_MAX_WORKERS, cores, useful), 1)
  try:
    with staging_directory(directory) as staging:
      folder = staging / "found"
      folder.mkdir()
      search = _Search(answers, corpus, folder)
      total = corpus.num_blocks
      bounds = [*range(0, total, _BLOCKS_PER_PART), total]
      parts = [range(*bound) for bound in itertools.pairwise(bounds)]
      # Workers are processes, because matching holds Python's global lock.
      counts = map_in_processes(search.write, parts, num_workers)
      with (
        contextlib.closing(counts),
        Progress("blocks searched for answers", total=total) as progress,
      ):
        for count in counts:
          progress.advance(count)
      _merge(folder, len(answers), staging)
      shutil.rmtree(folder)
      records = record_files(staging, ["offsets.npy", "rows.npy"])
      write_json(
        staging / _MANIFEST,
        {
          "format_version": _FORMAT_VERSION,
          "key": store_key(corpus, answers),
          "files": {file.path: file.entry for file in records},
        },
      )
      if is_remote(directory):
        upload_directory(staging, directory, last=_MANIFEST)
      else:
        rename_into_place(staging, directory, overwrite=True)
  except (OSError, RealmError) as error:
    raise AnswersError(
      f"cannot store which blocks contain answers in {directory}: {error}"
    ) from error


@dataclasses.dataclass(frozen=True)
class _Search:
  """Searches parts of a corpus; can be sent to other processes."""

  answers: Sequence[str]
  corpus: Corpus
  folder: Path

  @functools.cached_property
  def _automaton(self) -> BytesAhoCorasick:
    return automaton_of(self.answers)

  def write(self, rows: range) -> int:
    """Writes the answers in some rows; returns the number of rows."""
    places = np.arange(rows.start, rows.stop)
    pairs = find_answers(self._automaton, self.corpus, places)
    save_array(self.folder / f"{rows.start:012}.npy", np.stack(pairs))
    return len(rows)


def _merge(folder: Path, num_answers: int, directory: Path) -> None:
  """Concatenates and writes the sorted rows of all answers, with offsets."""
  paths = sorted(folder.iterdir())
  counts = np.zeros(num_answers, np.int64)
  for path in paths:
    answers, _ = np.load(path)
    counts += np.bincount(answers, minlength=num_answers)
  offsets = np.concatenate([[0], np.cumsum(counts)])
  save_array(directory / "offsets.npy", offsets)
  rows = create_mapped_array(
    directory / "rows.npy", np.int32, (int(offsets[-1]),)
  )
  ends = offsets[:-1].copy()
  for path in paths:
    answers, blocks = np.load(path)
    starts = np.flatnonzero(np.diff(answers, prepend=-1))
    sizes = np.diff(starts, append=len(answers))
    rank = np.arange(len(answers)) - np.repeat(starts, sizes)
    rows[ends[answers] + rank] = int(path.stem) + blocks
    ends[answers[starts]] += sizes
