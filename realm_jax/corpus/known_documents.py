"""The documents of a version, found by id, and which of them an update takes.

A document's first block has an id that follows from the document's, so the
block ids find documents, too.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.documents import Document
from realm_jax.corpus.store import NULL_ROW, Corpus


class Known(NamedTuple):
  """Where a document is: its shard's number, and its own in the shard."""

  shard: int
  document: int


class KnownDocuments:
  """The documents of one version, of which some may be taken away."""

  def __init__(self, corpus: Corpus):
    self._corpus = corpus
    self._taken: dict[int, list[int]] = collections.defaultdict(list)
    self.num_blocks_taken = 0

  def find(self, document_id: str) -> Known | None:
    """The document with this id, if the version has it."""
    row = int(self._corpus.rows_of(np.array(block_id(document_id, 0))))
    if row == NULL_ROW or self._corpus.document_id(row) != document_id:
      return None
    number, place = self._corpus.locate(row)
    return Known(number, self._corpus.shards[number].document(place))

  def is_same(self, known: Known, document: Document) -> bool:
    """Whether its blocks would be the same, but for space between them."""
    shard = self._corpus.shards[known.shard]
    first, limit = shard.document_places(known.document)
    return (
      shard.text("titles", known.document) == document.title
      and shard.text("urls", known.document) == document.url
      and consists_of(
        document.text, [shard.text("bodies", p) for p in range(first, limit)]
      )
    )

  def take(self, known: Known) -> None:
    """Takes a document away; each at most once."""
    self._taken[known.shard].append(known.document)
    first, limit = self._corpus.shards[known.shard].document_places(
      known.document
    )
    self.num_blocks_taken += limit - first

  def taken(self, shard: int) -> Int[np.ndarray, " d"]:
    """The numbers of the documents taken from a shard, in order."""
    return np.sort(np.array(self._taken[shard], np.int64))


def consists_of(text: str, bodies: Sequence[str]) -> bool:
  """Whether a text is the bodies of its blocks, with white space between.

  A character that is cut between two blocks is shown by both.
  """
  place = 0
  for body in bodies:
    start = place
    while start < len(text) and text[start].isspace():
      start += 1
    if not text.startswith(body, start):
      start = max(place - 1, 0)
      if not text.startswith(body, start):
        return False
    place = start + len(body)
  return not text[place:].strip()
