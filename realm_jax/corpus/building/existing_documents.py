"""The documents of a version, found by id, and which an update removes.

The id of a document's first block follows from the document's, so that block
ids find documents, too. Blocks that were removed since they equal an earlier
one still stand in their shards, and are searched as well.
"""

import collections
from typing import NamedTuple

import numpy as np

from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.building.sources.documents import Document
from realm_jax.corpus.shards.shard import Shard
from realm_jax.corpus.store import Corpus


class ExistingDocument(NamedTuple):
  """A document's shard, and the document's number in that shard."""

  shard: Shard
  number: int

  @property
  def positions(self) -> range:
    """The positions of the document's blocks in the shard."""
    return range(*self.shard.document_range(self.number))


class ExistingDocuments:
  """The documents of one version, of which an update may remove some.

  `removed` has those that the update removes, by shard.
  """

  def __init__(self, corpus: Corpus):
    self._corpus = corpus
    # Positions in each shard by block id.
    self._orders = {
      shard: np.argsort(shard.array("block_ids"), kind="stable")
      for shard in corpus.shards
    }
    self.removed = collections.defaultdict[Shard, list[ExistingDocument]](list)
    self.num_blocks_removed = 0

  def find(self, document_id: str) -> ExistingDocument | None:
    """Returns the document with this id, if the version has it."""
    first = block_id(self._corpus.name, document_id, 0)
    for shard, order in self._orders.items():
      ids = shard.array("block_ids")
      index = int(np.searchsorted(ids, first, sorter=order))
      for position in order[index:].tolist():
        if ids[position] != first:
          break
        found = ExistingDocument(shard, shard.document(position))
        # An update may have removed it, and another one added it again.
        if (
          shard.text("document_ids", found.number) == document_id
          and not np.isin(found.positions, shard.removed).all()
        ):
          return found
    return None

  def is_same(self, existing: ExistingDocument, document: Document) -> bool:
    """Returns whether a document would have the same blocks.

    White space between blocks is not compared. Where blocks may have touched,
    their tokens tell on which side of a cut a character was.
    """
    shard, number = existing
    if (
      shard.text("titles", number) != document.title
      or shard.text("urls", number) != document.url
    ):
      return False
    vocabulary, text = self._corpus.vocabulary, document.text
    tokens = [shard.body_tokens(position) for position in existing.positions]
    limit, before, may_touch = 0, "", False
    for position, ids in zip(existing.positions, tokens, strict=True):
      body, start = shard.text("bodies", position), limit
      while start < len(text) and text[start].isspace():
        start += 1
      if not text.startswith(body, start):
        # Both blocks show a character that was cut between them.
        start = max(limit - 1, 0)
        if not text.startswith(body, start):
          return False
      if before:
        may_touch |= start <= limit or before[-1] == body[0]
        may_touch |= bool(vocabulary.is_continuation[ids[0]])
      limit, before = start + len(body), body
    if text[limit:].strip():
      return False
    if not may_touch:
      return True
    given = vocabulary.tokenize_with_offsets([text])
    return np.array_equal(given.token_ids, np.concatenate(tokens))

  def remove(self, existing: ExistingDocument) -> None:
    """Marks a document as removed; each at most once."""
    self.removed[existing.shard].append(existing)
    before = np.isin(existing.positions, existing.shard.removed)
    self.num_blocks_removed += int((~before).sum())
