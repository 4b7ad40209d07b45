"""BM25 over wordpieces, with the library bm25s (arXiv 2407.03618)."""

import dataclasses
import errno
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  IndexLoadError,
  QueryBatch,
  SearchResult,
  check_k,
  library_of,
)
from realm_jax.settings import Fraction, NonNegativeFloat


@dataclasses.dataclass(frozen=True)
class Bm25Config(IndexConfig):
  """Lucene's BM25, with scores computed when the index is built.

  Attributes:
    k1: Saturation of term frequency: repetitions of a word count less from
      about this many on.
    b: Strength of the normalization by a block's length, from 0 to 1.
  """

  kind: ClassVar[str] = "bm25"
  needs_vectors: ClassVar[bool] = False
  k1: NonNegativeFloat = 0.9
  b: Fraction = 0.4

  def build(self, blocks: Blocks, directory: Path | None = None) -> "Bm25Index":
    """Counts the words of every block and writes a sparse matrix of scores."""
    if blocks.token_ids is None:
      raise RealmError("BM25 needs the blocks' wordpieces")
    library = _library().BM25(
      k1=self.k1, b=self.b, method="lucene", backend="numpy"
    )
    # The wordpieces' ids are the vocabulary, so no text is needed.
    library.vocab_dict = {str(i): i for i in range(blocks.vocab_size)}
    library.scores = library.build_index_from_ids(
      range(blocks.vocab_size),
      [blocks.token_ids(row).tolist() for row in range(blocks.num_blocks)],
      show_progress=False,
    )
    if directory is not None:
      try:
        library.save(directory, show_progress=False)
        # numpy overlooks that there was no room for the end of an array.
        self.load(directory, blocks)
      except (OSError, IndexLoadError) as error:
        # numpy's error does not say that the disk is full.
        raise OSError(
          getattr(error, "errno", None) or errno.ENOSPC,
          f"cannot write BM25's scores: {error}",
          str(directory),
        ) from error
    return Bm25Index(library)

  def load(self, directory: Path, blocks: Blocks) -> "Bm25Index":
    """Loads what `build` wrote, memory-mapped."""
    del blocks
    try:
      library = _library().BM25.load(
        directory, mmap=True, show_progress=False, load_vocab=False
      )
    except (ValueError, KeyError, TypeError, OSError) as error:
      raise IndexLoadError(
        f"bm25s cannot read {directory}: {error!r}; build it again"
      ) from error
    return Bm25Index(library)


class Bm25Index(Index):
  """Scores blocks by the words that they share with the query.

  Special wordpieces occur in no block, so those of a query score nothing.
  """

  kind = "bm25"
  needs_vectors = False
  has_own_scores = True

  def __init__(self, library: Any):
    self.num_blocks = int(library.scores["num_docs"])
    self._library = library

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks; those that share no word score 0."""
    check_k(k, self.num_blocks)
    shape = (len(queries.token_ids), k)
    rows = np.empty(shape, np.int32)
    scores = np.empty(shape, np.float32)
    for i, words in enumerate(queries.token_ids):
      all_scores = self._library.get_scores_from_ids(words)
      # Ties, also for the last place, go to the lower row.
      found = np.flatnonzero(all_scores >= np.partition(all_scores, -k)[-k])
      order = np.argsort(-all_scores[found], kind="stable")[:k]
      rows[i], scores[i] = found[order], all_scores[found[order]]
    return SearchResult(rows=rows, scores=scores)


def _library() -> Any:
  return library_of("bm25", "bm25s", "`pip install bm25s`")
