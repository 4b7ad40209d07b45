"""Whole documents with their blocks, as the arrays of a shard, in memory."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

# Ragged arrays by what they have an item for, and the arrays that have a row.
RAGGED_OF_BLOCKS = (
  *("token_ids", "byte_ranges", "sentences", "salient_spans", "bodies"),
)
RAGGED_OF_DOCUMENTS = ("titles", "document_ids", "urls")
PLAIN_OF_BLOCKS = ("block_ids", "content_hashes", "title_lengths")


class Blocks:
  """Documents and their blocks, in order.

  `arrays` are those of `format.ARRAYS`, with offsets from 0, and `span_kinds`
  the names of the kinds of salient spans.
  """

  def __init__(
    self, arrays: Mapping[str, np.ndarray], *, span_kinds: Sequence[str]
  ):
    self.arrays = arrays
    self.span_kinds = tuple(span_kinds)

  @property
  def num_documents(self) -> int:
    """Number of the documents."""
    return len(self.arrays["document_starts"]) - 1

  @property
  def num_blocks(self) -> int:
    """Number of the blocks of all documents."""
    return len(self.arrays["block_ids"])

  @property
  def blocks_per_document(self) -> Int[np.ndarray, " d"]:
    """Number of blocks of each document."""
    return np.diff(self.arrays["document_starts"])

  def between(self, first: int, limit: int) -> "Blocks":
    """Returns the documents `[first, limit)`, without a copy of the largest."""
    if (first, limit) == (0, self.num_documents):
      return self
    starts = self.arrays["document_starts"]
    blocks = slice(*starts[[first, limit]].tolist())
    parts: dict[str, np.ndarray] = {
      "document_starts": starts[first : limit + 1] - starts[first]
    }
    for name in PLAIN_OF_BLOCKS:
      parts[name] = self.arrays[name][blocks]
    for names, items in (
      (RAGGED_OF_BLOCKS, blocks),
      (RAGGED_OF_DOCUMENTS, slice(first, limit)),
    ):
      for name in names:
        offsets = self.arrays[f"{name}_offsets"][items.start : items.stop + 1]
        rows = slice(offsets[0], offsets[-1])
        parts[f"{name}_offsets"] = offsets - offsets[0]
        parts[name] = self.arrays[name][rows]
        if name == "salient_spans":
          kinds = self.arrays["salient_span_kinds"]
          parts["salient_span_kinds"] = kinds[rows]
    return Blocks(parts, span_kinds=self.span_kinds)


def shard_cuts(
  blocks_per_document: Int[np.ndarray, " d"],
  *,
  filled: int,
  blocks_per_shard: int,
) -> list[int]:
  """Returns the documents with which new shards begin.

  A shard ends at `blocks_per_shard` blocks, once its last document is complete,
  so that where shards end follows from the counts of blocks alone. `filled` is
  the number of blocks that the current shard has before these documents.
  """
  totals = np.cumsum(blocks_per_document)
  cuts: list[int] = []
  wanted = blocks_per_shard - filled
  index = 0 if wanted <= 0 else int(np.searchsorted(totals, wanted)) + 1
  while index < len(totals):
    cuts.append(index)
    before = int(totals[index - 1]) if index else 0
    index = int(np.searchsorted(totals, before + blocks_per_shard)) + 1
  return cuts
