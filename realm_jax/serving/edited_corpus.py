"""A corpus in which the text of some blocks is another, in memory alone."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.block_builder import BlockBuilder
from realm_jax.corpus.documents import Document
from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS, Shard
from realm_jax.corpus.store import Corpus
from realm_jax.serving.errors import EditError


class EditedBlock(Shard):
  """A shard of one block, which is in memory and has no salient spans.

  Its arrays are those that `build_corpus` would write for the text.

  Args:
    corpus: Corpus of the block; its vocabulary reads the text.
    row: Row of the block. Id, title and URL stay.
    text: New text of its body.

  Raises:
    EditError: The text has no words, or more than a block can hold.
  """

  def __init__(self, corpus: Corpus, row: int, text: str):
    # Nothing of it is in a file.
    super().__init__("", Path, removed=None, span_kinds=())
    builder = BlockBuilder(
      vocabulary=corpus.vocabulary,
      corpus_name=corpus.name,
      block_length=corpus.block_length,
      tagger=None,
    )
    block = corpus.block(row)
    document = Document(
      block.document_id,
      block.title,
      text.strip(),
      block.url,
      place="an edit",
      is_block=True,
    )
    built = builder.build([document])
    self._arrays.update(built.blocks.arrays)
    # Its document began as many blocks before.
    self._arrays["document_starts"] = np.array([-block.ordinal, 1])
    if built.cut_ends.any():
      used = NUM_SPECIAL_TOKENS + int(self.array("title_lengths")[0])
      raise EditError(
        f"the text has {len(corpus.vocabulary.encode(text))} wordpieces, and "
        f"the block {block.name} has room for "
        f"{corpus.block_length - used}; shorten it"
      )
    if self.lengths[0] == self.array("title_lengths")[0]:
      raise EditError("the text has no words; write some, or restore the block")


class EditedCorpus(Corpus):
  """A view of a corpus in which some rows have other blocks.

  It reads exactly as a corpus that was built from the edited text would, except
  that edited blocks have no salient spans. Ids, rows and the files stay as they
  are.

  Args:
    corpus: Corpus to look through to.
    edited: Blocks by row.
  """

  def __init__(self, corpus: Corpus, edited: Mapping[int, EditedBlock]):
    # The view shares the open shards, the vocabulary and whatever else the
    # corpus has read, except what depends on the texts.
    vars(self).update(vars(corpus))
    for name in ("lengths", "content_hashes"):
      vars(self).pop(name, None)
    self._corpus = corpus
    self._edited = dict(edited)
    no_kinds = {block: np.zeros(0, np.int32) for block in edited.values()}
    self._kinds_of_shard = {**self._kinds_of_shard, **no_kinds}

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " N"]:
    lengths = self._corpus.lengths.copy()
    for row, block in self._edited.items():
      lengths[row] = block.lengths[0] + NUM_SPECIAL_TOKENS
    return lengths

  @functools.cached_property
  def content_hashes(self) -> Int[np.ndarray, " N"]:
    hashes = np.array(self._corpus.content_hashes)
    for row, block in self._edited.items():
      hashes[row] = block.array("content_hashes")[0]
    return hashes

  def locate(self, row: int) -> tuple[Shard, int]:
    block = self._edited.get(row)
    return super().locate(row) if block is None else (block, 0)

  def _by_shard(
    self, rows: Int[np.ndarray, " n"]
  ) -> Iterator[tuple[Shard, Int[np.ndarray, " m"], Int[np.ndarray, " m"]]]:
    is_edited = np.isin(rows, [*self._edited])
    for shard, indices, positions in super()._by_shard(rows):
      kept = ~is_edited[indices]
      if kept.any():
        yield shard, indices[kept], positions[kept]
    for row, block in self._edited.items():
      indices = np.flatnonzero(rows == row)
      if len(indices):
        yield block, indices, np.zeros(len(indices), np.int64)
