"""The documents of a version, found by id, and which an update removes.

The id of a document's first block follows from the document's, so that block
ids find documents, too.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from realm_jax.corpus.building.block_builder import block_id
from realm_jax.corpus.building.documents import Document
from realm_jax.corpus.shards.shard import Shard
from realm_jax.corpus.store import NULL_ROW, Corpus


class ExistingDocument(NamedTuple):
  """The number of a document's shard, and its own number in that shard."""

  shard: int
  document: int


class ExistingDocuments:
  """The documents of one version, of which an update may remove some."""

  def __init__(self, corpus: Corpus):
    self._corpus = corpus
    self._is_continuation = corpus.vocabulary.is_continuation
    self._removed: dict[int, list[int]] = collections.defaultdict(list)
    self.num_blocks_removed = 0

  def find(self, document_id: str) -> ExistingDocument | None:
    """Returns the document with this id, if the version has it."""
    row = int(self._corpus.rows_of(np.array(block_id(document_id, 0))))
    if row == NULL_ROW or self._corpus.document_id(row) != document_id:
      return None
    number, position = self._corpus.locate(row)
    document = self._corpus.shards[number].document(position)
    return ExistingDocument(number, document)

  def is_same(self, existing: ExistingDocument, document: Document) -> bool:
    """Returns whether a document would have the same blocks.

    White space between blocks is not compared.
    """
    shard = self._corpus.shards[existing.shard]
    if (
      shard.text("titles", existing.document) != document.title
      or shard.text("urls", existing.document) != document.url
    ):
      return False
    positions = range(*shard.document_range(existing.document))
    bodies = [shard.text("bodies", position) for position in positions]
    gaps = gaps_before(document.text, bodies)
    if gaps is None:
      return False
    tokens = [_body_token_ids(shard, position) for position in positions]
    continues = [bool(self._is_continuation[ids[0]]) for ids in tokens]
    if _are_separate(gaps, bodies, continues):
      return True
    # Where blocks touch, tokens tell on which side of a cut a character was.
    given = self._corpus.vocabulary.tokenize_with_offsets([document.text])
    return np.array_equal(given.token_ids, np.concatenate(tokens))

  def remove(self, existing: ExistingDocument) -> None:
    """Marks a document as removed; each at most once."""
    self._removed[existing.shard].append(existing.document)
    shard = self._corpus.shards[existing.shard]
    start, limit = shard.document_range(existing.document)
    self.num_blocks_removed += limit - start

  def removed(self, shard: int) -> Int[np.ndarray, " d"]:
    """Returns the numbers of the documents removed from a shard, sorted."""
    return np.sort(np.array(self._removed[shard], np.int64))


def _body_token_ids(shard: Shard, position: int) -> Integer[np.ndarray, " b"]:
  title_length = int(shard.array("title_lengths")[position])
  return shard.item("token_ids", position)[title_length:]


def gaps_before(text: str, bodies: Sequence[str]) -> list[int] | None:
  """Counts the white space that a text has before each of its blocks' bodies.

  The count is −1 where a character was cut between two blocks, since both
  show it. The result is None if the text does not consist of these bodies.
  """
  position, gaps = 0, []
  for body in bodies:
    start = position
    while start < len(text) and text[start].isspace():
      start += 1
    if not text.startswith(body, start):
      start = max(position - 1, 0)
      if not text.startswith(body, start):
        return None
    gaps.append(start - position)
    position = start + len(body)
  return None if text[position:].strip() else gaps


def _are_separate(
  gaps: Sequence[int], bodies: Sequence[str], continues: Sequence[bool]
) -> bool:
  """Returns whether white space surely parted all blocks in the old text.

  A block that begins with the rest of a word, or with the character that the
  one before ends with, may have touched it.
  """
  return all(
    gap > 0 and not continued and before[-1:] != body[:1]
    for gap, continued, before, body in zip(
      gaps[1:], continues[1:], bodies[:-1], bodies[1:], strict=True
    )
  )
