"""The documents of a version, found by id, and which of them an update takes.

A document's first block has an id that follows from the document's, so the
block ids find documents, too.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.build.block_builder import block_id
from realm_jax.corpus.build.documents import Document
from realm_jax.corpus.shards.shard import Shard
from realm_jax.corpus.store import NULL_ROW, Corpus


class Known(NamedTuple):
  """Where a document is: its shard's number, and its own in the shard."""

  shard: int
  document: int


class KnownDocuments:
  """The documents of one version, of which some may be taken away."""

  def __init__(self, corpus: Corpus):
    self._corpus = corpus
    self._continues = corpus.vocabulary.is_continuation
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
    places = range(*shard.document_places(known.document))
    if (
      shard.text("titles", known.document) != document.title
      or shard.text("urls", known.document) != document.url
    ):
      return False
    bodies = [shard.text("bodies", place) for place in places]
    gaps = gaps_before(document.text, bodies)
    if gaps is None:
      return False
    tokens = [self._body_token_ids(shard, place) for place in places]
    if _is_clear(gaps, bodies, [self._continues[t[0]] for t in tokens]):
      return True
    # Where blocks touch, tokens tell on which side of a cut a character was.
    read = self._corpus.vocabulary.tokenize_with_offsets([document.text])
    return np.array_equal(read.token_ids, np.concatenate(tokens))

  def _body_token_ids(self, shard: Shard, place: int) -> Int[np.ndarray, " b"]:
    title_length = int(shard.array("title_lengths")[place])
    return shard.item("token_ids", place)[title_length:]

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


def gaps_before(text: str, bodies: Sequence[str]) -> list[int] | None:
  """How much white space a text has before each of the bodies of its blocks.

  A character that is cut between two blocks is shown by both: −1. None where
  the text is not these bodies.
  """
  place, gaps = 0, []
  for body in bodies:
    start = place
    while start < len(text) and text[start].isspace():
      start += 1
    if not text.startswith(body, start):
      start = max(place - 1, 0)
      if not text.startswith(body, start):
        return None
    gaps.append(start - place)
    place = start + len(body)
  return None if text[place:].strip() else gaps


def _is_clear(
  gaps: Sequence[int], bodies: Sequence[str], continues: Sequence[bool]
) -> bool:
  """Whether all blocks are parted by white space, as they were when built.

  A block that begins with the rest of a word, or with the character that the
  one before ends with, may have touched it.
  """
  return all(
    gap > 0 and not continued and before[-1:] != body[:1]
    for gap, continued, before, body in zip(
      gaps[1:], continues[1:], bodies[:-1], bodies[1:], strict=True
    )
  )
