"""The stored rows of the blocks that contain each answer.

answers.json     manifest, written last
offsets.npy      the rows of answer i are rows[offsets[i]:offsets[i + 1]]
rows.npy         rows of blocks, sorted for each answer
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.answers import search
from realm_jax.answers.matcher import BlockMatcher, Matches
from realm_jax.console import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.storage.atomic import (
  TargetError,
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.json_files import JsonValue, write_json
from realm_jax.storage.local_disk import create_mapped_array, save_array
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.storage.staging import FileRecord, StagedFiles, record_files

_MANIFEST = "answers.json"
_FORMAT_VERSION = 2
# Processes are worth their start only for more blocks than this.
_BLOCKS_PER_WORKER = 20_000
_MAX_WORKERS = 16


class AnswersError(ValueError):
  """A store of answers that is missing, damaged or cannot be made."""


class AnswerStore:
  """Rows of blocks by the number of the answer, memory-mapped."""

  def __init__(self, directory: Path):
    self._offsets = _mapped(directory, "offsets")
    self._rows = _mapped(directory, "rows")

  @classmethod
  def open(cls, directory: epath.PathLike, key: str) -> "AnswerStore":
    """Opens a store and verifies all of its files.

    Raises:
      AnswersError: It is missing, damaged, or of other answers or blocks.
    """
    source = epath.Path(directory)
    try:
      manifest = json.loads((source / _MANIFEST).read_text())
      found = manifest["format_version"], manifest["key"]
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise AnswersError(f"there is no whole store at {source}") from error
    if found != (_FORMAT_VERSION, key):
      raise AnswersError(f"{source} is of another format or of other answers")
    records = [
      FileRecord(name, record["bytes"], record["sha256"])
      for name, record in manifest["files"].items()
    ]
    staged = StagedFiles(source, records, error=AnswersError)
    return cls(staged.get([record.path for record in records]))

  @property
  def num_answers(self) -> int:
    """The number of answers."""
    return len(self._offsets) - 1

  @property
  def num_pairs(self) -> int:
    """The number of pairs of an answer and a block that contains it."""
    return len(self._rows)

  @property
  def num_not_found(self) -> int:
    """The number of answers that no block contains."""
    return int(np.count_nonzero(np.diff(self._offsets) == 0))

  def rows(self, number: int) -> Int[np.ndarray, " n"]:
    """Returns the sorted rows of the blocks that contain an answer."""
    return self._rows[self._offsets[number] : self._offsets[number + 1]]


def _mapped(directory: Path, name: str) -> np.ndarray:
  array = np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
  return array.view(np.ndarray)


def store_key(corpus: Corpus, answers: Sequence[str]) -> str:
  """Returns what a store is recognised by: its blocks and answers."""
  of_answers = hashlib.sha256(json.dumps(answers).encode()).hexdigest()
  text = f"{corpus.fingerprint} {of_answers}"
  return hashlib.sha256(text.encode()).hexdigest()


def build_store(
  directory: epath.PathLike,
  corpus: Corpus,
  answers: Sequence[str],
  *,
  num_workers: int | None = None,
) -> None:
  """Makes the store of a corpus and answers; replaces one that is there.

  It appears complete, or not at all. The memory that it takes does not grow
  with the number of blocks.

  Args:
    directory: Directory of the store, local or on an object store.
    corpus: Corpus to search.
    answers: Distinct answers to look for, one at least.
    num_workers: Number of processes; None chooses by cores and blocks.

  Raises:
    AnswersError: A process failed, or the disk is full.
  """
  if num_workers is None:
    cores = len(os.sched_getaffinity(0))
    wanted = corpus.num_blocks // _BLOCKS_PER_WORKER
    num_workers = max(min(_MAX_WORKERS, cores, wanted), 1)
  try:
    with staging_directory(directory) as staging:
      folder = staging / "found"
      folder.mkdir()
      _search(folder, corpus, answers, num_workers)
      _merge(folder, len(answers), staging)
      shutil.rmtree(folder)
      _write_manifest(staging, store_key(corpus, answers))
      if is_remote(directory):
        upload_directory(staging, directory, last=_MANIFEST)
      else:
        rename_into_place(staging, directory, overwrite=True)
  except (OSError, TargetError) as error:
    raise AnswersError(
      f"cannot store which blocks contain answers in {directory}: {error}"
    ) from error


def _search(
  folder: Path, corpus: Corpus, answers: Sequence[str], num_workers: int
) -> None:
  """Searches all rows, in other processes if there are to be several."""
  total = corpus.num_blocks
  with Progress("blocks searched for answers", total=total) as progress:
    if num_workers == 1:
      matcher = BlockMatcher(answers)
      for rows in search.parts_of(total):
        progress.advance(search.search_part(rows, folder, corpus, matcher))
      return
    environment = {
      **os.environ,
      # It finds the project where this process did,
      "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
      # and forks, which is safe without threads.
      "OPENBLAS_NUM_THREADS": "1",
    }
    with subprocess.Popen(
      [sys.executable, "-m", search.__name__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    ) as process:
      assert process.stdin is not None
      assert process.stdout is not None
      try:
        process.stdin.write(
          search.request(folder, corpus, answers, num_workers)
        )
        process.stdin.close()
        for line in process.stdout:
          progress.advance(int(line))
      except BaseException:
        process.kill()
        raise
  if process.returncode:
    raise AnswersError(
      "the process that searched blocks for answers ended with status "
      f"{process.returncode}; its last lines say why"
    )


def _merge(folder: Path, num_answers: int, directory: Path) -> None:
  """Writes the sorted rows of each answer end to end, and their offsets."""
  paths = sorted(folder.iterdir())
  counts = np.zeros(num_answers, np.int64)
  for path in paths:
    found = Matches.of(np.load(path, allow_pickle=False))
    counts += np.bincount(found.answer, minlength=num_answers)
  offsets = np.concatenate([[0], np.cumsum(counts)])
  save_array(directory / "offsets.npy", offsets)
  rows = create_mapped_array(
    directory / "rows.npy", np.int32, (int(offsets[-1]),)
  )
  ends = offsets[:-1].copy()
  for path in paths:
    answers, blocks = Matches.of(np.load(path, allow_pickle=False))
    starts = np.flatnonzero(np.diff(answers, prepend=-1))
    sizes = np.diff(starts, append=len(answers))
    rank = np.arange(len(answers)) - np.repeat(starts, sizes)
    rows[ends[answers] + rank] = int(path.stem) + blocks
    ends[answers[starts]] += sizes


def _write_manifest(directory: Path, key: str) -> None:
  names = sorted(path.name for path in directory.glob("*.npy"))
  files: dict[str, JsonValue] = {
    file.path: {"bytes": file.size, "sha256": file.sha256}
    for file in record_files(directory, names)
  }
  write_json(
    directory / _MANIFEST,
    {"format_version": _FORMAT_VERSION, "key": key, "files": files},
  )
