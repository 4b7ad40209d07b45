"""One pass over consecutive rows, whose matches are written to disk in runs."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from realm_jax.answers import matcher
from realm_jax.answers.matcher import BlockMatcher, Keys
from realm_jax.corpus.store import Corpus
from realm_jax.files import npy

# Occurrences that are sorted and written together, with repetitions.
_KEYS_PER_RUN = 2_000_000
_ROWS_PER_SEARCH = 4096


@dataclasses.dataclass(frozen=True)
class Runs:
  """The matches of consecutive rows, on disk.

  Attributes:
    first_rows: The row that block 0 of each run is; runs follow each other.
    sizes: Number of keys of each run, which are distinct and sorted.
  """

  path: Path
  first_rows: list[int]
  sizes: list[int]

  def __iter__(self) -> Iterator[tuple[int, Keys]]:
    """Yields the first row and the keys of each run."""
    with self.path.open("rb") as file:
      for first_row, size in zip(self.first_rows, self.sizes, strict=True):
        yield first_row, np.fromfile(file, np.uint64, size)

  def save(self) -> None:
    """Writes all but the keys beside them."""
    fields = {
      "first_rows": self.first_rows,
      "sizes": self.sizes,
    }
    self.path.with_suffix(".json").write_text(json.dumps(fields))

  @classmethod
  def load(cls, path: Path) -> "Runs":
    """Reads what `save` wrote."""
    fields = json.loads(path.with_suffix(".json").read_text())
    return cls(path, **fields)


def write_runs(
  path: Path,
  block_matcher: BlockMatcher,
  corpus: Corpus,
  rows: range,
  *,
  advance: Callable[[int], None],
) -> Runs:
  """Searches rows and writes what they contain.

  `advance` is told the numbers of rows that are done.
  """
  first_rows, sizes = [], []
  first, keys, num_keys = rows.start, list[Keys](), 0
  with path.open("wb") as file:
    for start in range(rows.start, rows.stop, _ROWS_PER_SEARCH):
      limit = min(start + _ROWS_PER_SEARCH, rows.stop)
      found = block_matcher.search(corpus, np.arange(start, limit))
      # Blocks are numbered from the first row of the run.
      keys.append(found + np.uint64(start - first))
      num_keys += len(found)
      full = limit - first + _ROWS_PER_SEARCH > matcher.MAX_BLOCKS
      if full or num_keys >= _KEYS_PER_RUN or limit == rows.stop:
        run = np.unique(np.concatenate(keys))
        file.write(run.data)
        first_rows.append(first)
        sizes.append(len(run))
        first, keys, num_keys = limit, [], 0
      advance(limit - start)
  return Runs(path, first_rows, sizes)


def merge(
  parts: list[Runs], num_answers: int, path: Path
) -> Int[np.ndarray, " bounds"]:
  """Writes the sorted rows of each answer end to end; returns their offsets.

  The rows of all parts follow each other; the array is written to `path`.
  """
  counts = np.zeros(num_answers, np.int64)
  for _, keys in itertools.chain(*parts):
    counts += np.bincount(matcher.unpacked(keys).answer, minlength=num_answers)
  offsets = np.concatenate([[0], np.cumsum(counts)])
  rows = npy.create_mapped(path, np.int32, (int(offsets[-1]),))
  ends = offsets[:-1].copy()
  for first_row, keys in itertools.chain(*parts):
    answers, blocks = matcher.unpacked(keys)
    starts = np.flatnonzero(np.diff(answers, prepend=-1))
    sizes = np.diff(starts, append=len(answers))
    rank = np.arange(len(answers)) - np.repeat(starts, sizes)
    rows[ends[answers] + rank] = first_row + blocks
    ends[answers[starts]] += sizes
  return offsets
