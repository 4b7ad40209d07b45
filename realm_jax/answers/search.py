"""Searches the blocks of a corpus for answers, in parts that are files.

    python -m realm_jax.answers.search < REQUEST.json

The command searches with several processes, since matching holds Python's lock,
and prints the number of rows that it has done with each part. It imports
neither TensorFlow nor jax, so that its processes are forks, which share the
automaton.
"""

import functools
import itertools
import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from realm_jax.answers.matcher import BlockMatcher
from realm_jax.corpus.store import Corpus
from realm_jax.storage.local_disk import save_array

# Rows whose occurrences are sorted and written together.
_ROWS_PER_PART = 16_384


def parts_of(num_rows: int) -> list[range]:
  """Returns the parts into which rows are divided."""
  bounds = [*range(0, num_rows, _ROWS_PER_PART), num_rows]
  return [range(*bound) for bound in itertools.pairwise(bounds)]


def search_part(
  rows: range, folder: Path, corpus: Corpus, matcher: BlockMatcher
) -> int:
  """Writes the sorted keys of what rows contain to `FOLDER/<first row>.npy`.

  Returns:
    The number of rows, once the file is there.
  """
  keys = matcher.search(corpus, np.arange(rows.start, rows.stop))
  save_array(folder / f"{rows.start:012}.npy", keys)
  return len(rows)


def request(
  folder: Path, corpus: Corpus, answers: Sequence[str], num_workers: int
) -> str:
  """Returns what the command reads."""
  opened = {
    "directory": str(corpus.source),
    "version": corpus.version,
    "fingerprint": corpus.fingerprint,
  }
  fields = {
    "folder": str(folder),
    "corpus": opened,
    "answers": answers,
    "num_workers": num_workers,
  }
  return json.dumps(fields)


def main() -> None:
  """Searches all rows."""
  asked = json.load(sys.stdin)
  corpus = Corpus.open(**asked["corpus"])
  search = functools.partial(
    search_part,
    folder=Path(asked["folder"]),
    corpus=corpus,
    matcher=BlockMatcher(asked["answers"]),
  )
  _searches.append(search)
  forks = multiprocessing.get_context("fork")
  with forks.Pool(asked["num_workers"]) as workers:
    parts = parts_of(corpus.num_blocks)
    for count in workers.imap_unordered(_search_in_fork, parts):
      print(count, flush=True)


# What the forks inherit: an automaton cannot be sent to them.
_searches: list[functools.partial[int]] = []


def _search_in_fork(rows: range) -> int:
  return _searches[0](rows)


if __name__ == "__main__":
  main()
