"""One pass over consecutive rows, whose matches are written to disk in runs."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from realm_jax.answers import matcher
from realm_jax.answers.matcher import BlockMatcher, Keys
from realm_jax.corpus.store import Corpus

# Occurrences that are sorted and written together, with repetitions.
_KEYS_PER_RUN = 2_000_000
_ROWS_PER_SEARCH = 4096


@dataclasses.dataclass(frozen=True)
class Runs:
  """The matches of consecutive rows, on disk.

  Attributes:
    first_rows: The row that block 0 of each run is; runs follow each other.
    sizes: Number of keys of each run, which are distinct and sorted.
    refused: Why patterns were refused, by number.
  """

  path: Path
  first_rows: list[int]
  sizes: list[int]
  refused: dict[int, str]

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
      "refused": list(self.refused.items()),
    }
    self.path.with_suffix(".json").write_text(json.dumps(fields))

  @classmethod
  def load(cls, path: Path) -> "Runs":
    """Reads what `save` wrote."""
    fields = json.loads(path.with_suffix(".json").read_text())
    refused = {int(number): why for number, why in fields.pop("refused")}
    return cls(path, **fields, refused=refused)


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
      keys.append(matcher.shifted(found, start - first))
      num_keys += len(found)
      full = limit - first + _ROWS_PER_SEARCH > matcher.MAX_BLOCKS
      if full or num_keys >= _KEYS_PER_RUN or limit == rows.stop:
        run = matcher.distinct(np.concatenate(keys))
        file.write(run.data)
        first_rows.append(first)
        sizes.append(len(run))
        first, keys, num_keys = limit, [], 0
      advance(limit - start)
  return Runs(path, first_rows, sizes, block_matcher.refused)


def merge(
  parts: list[Runs],
  num_answers: int,
  *,
  create: Callable[[str, type[np.generic], int], np.ndarray],
  with_limits: bool,
) -> Int[np.ndarray, " bounds"]:
  """Writes the sorted rows of each answer end to end; returns their offsets.

  The rows of all parts follow each other. `create` makes an array on disk, by
  name, type and size: `rows` and, if wanted, `limits`.
  """
  is_refused = np.zeros(num_answers, bool)
  is_refused[[number for part in parts for number in part.refused]] = True

  def kept() -> Iterator[tuple[int, matcher.Matches]]:
    for part in parts:
      for first_row, keys in part:
        matches = matcher.unpacked(keys)
        usable = ~is_refused[matches.answer]
        yield first_row, matcher.Matches(*(array[usable] for array in matches))

  counts = np.zeros(num_answers, np.int64)
  for _, matches in kept():
    counts += np.bincount(matches.answer, minlength=num_answers)
  offsets = np.concatenate([[0], np.cumsum(counts)])
  rows = create("rows", np.int32, int(offsets[-1]))
  limits = None
  if with_limits:
    limits = create("limits", np.uint16, int(offsets[-1]))
  ends = offsets[:-1].copy()
  for first_row, matches in kept():
    starts = np.flatnonzero(np.diff(matches.answer, prepend=-1))
    sizes = np.diff(starts, append=len(matches.answer))
    rank = np.arange(len(matches.answer)) - np.repeat(starts, sizes)
    places = ends[matches.answer] + rank
    rows[places] = first_row + matches.block
    if limits is not None:
      limits[places] = matches.limit
    ends[matches.answer[starts]] += sizes
  return offsets
