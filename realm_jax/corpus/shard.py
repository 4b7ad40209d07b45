"""Shards: arrays of documents and their blocks, written once and memory-mapped.

Ragged data is stored as a flat array and its offsets: item i of `x.npy` is
`x[x_offsets[i]:x_offsets[i + 1]]`. Documents are never split between shards.
Kinds of salient spans are numbers, which index the names that the manifest
lists for the shard; so are relations of links.

A block's position in the arrays never changes. An update removes blocks by
listing their positions, and the rows of the new version skip them.
`Shard.positions` maps rows, counted from the shard's first one, to positions.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.manifest import ShardRecord

# [CLS], and [SEP] after the title and after the body of a block.
NUM_SPECIAL_TOKENS = 3
# The special tokens, and at least a piece of the title and one of the body.
MIN_BLOCK_LENGTH = 8

# Names and dtypes. `token_ids` is uint16 if the vocabulary allows it, which
# halves the largest array that training reads.
ARRAYS: dict[str, np.dtype] = {
  # One row for each block.
  "block_ids": np.dtype("<i8"),
  "content_hashes": np.dtype("<i8"),
  "title_lengths": np.dtype("<i4"),
  "token_ids_offsets": np.dtype("<i8"),
  "byte_ranges_offsets": np.dtype("<i8"),
  "sentences_offsets": np.dtype("<i8"),
  "salient_spans_offsets": np.dtype("<i8"),
  "bodies_offsets": np.dtype("<i8"),
  # One row for each token of title and body.
  "token_ids": np.dtype("<i4"),
  # One row for each token of the body: its bytes [start, limit) in `bodies`.
  "byte_ranges": np.dtype("<i4"),
  # Ranges [start, limit) of the body's tokens.
  "sentences": np.dtype("<i4"),
  "salient_spans": np.dtype("<i4"),
  # One row for each salient span: its kind.
  "salient_span_kinds": np.dtype("u1"),
  # Original text, UTF-8.
  "bodies": np.dtype("u1"),
  # One row for each document: the position of its first block in the shard
  # (with the number of blocks at the end), a hash of its input, which shows an
  # update what has changed, and its texts.
  "document_starts": np.dtype("<i8"),
  "document_hashes": np.dtype("<i8"),
  "titles": np.dtype("u1"),
  "titles_offsets": np.dtype("<i8"),
  "document_ids": np.dtype("u1"),
  "document_ids_offsets": np.dtype("<i8"),
  "urls": np.dtype("u1"),
  "urls_offsets": np.dtype("<i8"),
  # Its other fields, as a JSON object; empty if there are none.
  "fields": np.dtype("u1"),
  "fields_offsets": np.dtype("<i8"),
}

# Additional arrays if documents have links; see `links.py`.
LINK_ARRAYS: dict[str, np.dtype] = {
  # One row for each block.
  "links_offsets": np.dtype("<i8"),
  # One row for each link, in the order of the text: the key of the title that
  # it links to, the number of its relation, and its bytes [start, limit) in the
  # body, or −1.
  "links": np.dtype("<i8"),
  "link_relations": np.dtype("<i4"),
  "link_ranges": np.dtype("<i4"),
  # One row for each document: the key of its title.
  "title_keys": np.dtype("<i8"),
}


def ragged_indices(
  starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " t"]:
  """Returns `[starts[0], …, starts[0] + lengths[0] - 1, starts[1], …]`."""
  limits = np.cumsum(lengths)
  total = int(limits[-1]) if len(limits) else 0
  return np.arange(total) + np.repeat(starts - (limits - lengths), lengths)


class Shard:
  """The arrays of a shard, mapped into memory on first use.

  Args:
    record: Record of the shard in the manifest.
    local: Function that returns the local path of a file in the corpus's
      directory.
    span_kinds: Names of all kinds of salient spans in the corpus.
  """

  def __init__(
    self,
    record: ShardRecord,
    local: Callable[[str], Path],
    span_kinds: Sequence[str],
  ):
    removed = record.get("removed", {"path": None, "num_blocks": 0})
    self.num_blocks = record["num_blocks"] - removed["num_blocks"]
    # Maps the shard's numbers of kinds to the corpus's.
    kinds = [span_kinds.index(kind) for kind in record["span_kinds"]]
    self.kinds = np.array(kinds, np.int32)
    self.record, self._local = record, local
    self._removed_path = removed["path"]
    self._arrays: dict[str, np.ndarray] = {}

  @functools.cached_property
  def removed(self) -> Int[np.ndarray, " r"]:
    """Sorted positions of the removed blocks."""
    if self._removed_path is None:
      return np.zeros(0, np.int64)
    return np.load(self._local(self._removed_path), allow_pickle=False)

  @functools.cached_property
  def kept(self) -> Int[np.ndarray, " n"] | slice:
    """Positions of the remaining blocks; a slice if none were removed."""
    if self._removed_path is None:
      return slice(None)
    num_positions = self.num_blocks + len(self.removed)
    return np.delete(np.arange(num_positions), self.removed)

  @functools.cached_property
  def row_starts(self) -> Int[np.ndarray, " starts"]:
    """First row of each document, or of the next one if it was removed."""
    starts = self.array("document_starts")
    if isinstance(self.kept, slice):
      return starts
    return np.searchsorted(self.kept, starts)

  def titles(self) -> Iterator[str]:
    """Yields the titles of all documents, including removed ones."""
    for number in range(len(self.array("document_starts")) - 1):
      yield self.item("titles", number).tobytes().decode()

  def positions(self, rows: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """Returns the positions of rows; rows skip removed blocks."""
    return rows if isinstance(self.kept, slice) else self.kept[rows]

  def array(self, name: str) -> np.ndarray:
    """Returns an array of `ARRAYS`, mapped on first use."""
    if name not in self._arrays:
      path = self._local(f"{self.record['name']}/{name}.npy")
      mapped = np.load(path, mmap_mode="r", allow_pickle=False)
      # A plain view, because indexing a memmap object runs Python code.
      self._arrays[name] = mapped.view(np.ndarray)
    return self._arrays[name]

  def item(self, name: str, index: int, *, of: str | None = None) -> np.ndarray:
    """Returns an item of a ragged array, by its own offsets or `of` another."""
    offsets = self.array(f"{of or name}_offsets")
    return self.array(name)[offsets[index] : offsets[index + 1]]

  def fields(self, document: int) -> dict[str, Any]:
    """Returns the fields of a document, given its number in the shard."""
    # Corpora of earlier releases have no fields.
    if "fields.npy" not in self.record["files"]:
      return {}
    text = self.item("fields", document).tobytes()
    return json.loads(text) if text else {}

  def document(self, position: int) -> int:
    """Returns the number in the shard of a block's document."""
    starts = self.array("document_starts")
    return int(np.searchsorted(starts, position, side="right")) - 1

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " n"]:
    """Number of tokens of each title and body, without special tokens."""
    return np.diff(self.array("token_ids_offsets"))

  def gather(
    self,
    positions: Int[np.ndarray, " m"],
    length: int,
    *,
    cls_id: int,
    sep_id: int,
  ) -> Int[np.ndarray, "m {length}"]:
    """Returns `[CLS] title [SEP] body [SEP]`, truncated or padded with 0."""
    token_ids = self.array("token_ids")
    offsets = self.array("token_ids_offsets")
    starts = offsets[positions]
    full_titles = self.array("title_lengths")[positions].astype(np.int64)
    titles = np.minimum(full_titles, length - NUM_SPECIAL_TOKENS)
    bodies = offsets[positions + 1] - starts - full_titles
    bodies = np.minimum(bodies, length - NUM_SPECIAL_TOKENS - titles)

    column = np.arange(length)
    title_limits = titles[:, None] + 1
    body_limits = title_limits + 1 + bodies[:, None]
    in_body = column > title_limits
    # Column 1 is the title's first token. Before the body's first token there
    # is another [SEP], and in the array the truncated end of the title.
    skipped = np.where(in_body, (full_titles - titles - 1)[:, None], 0)
    source = (starts - 1)[:, None] + column + skipped
    tokens = token_ids.take(source, mode="clip").astype(np.int32)
    tokens[column >= body_limits] = 0
    tokens[:, 0] = cls_id
    block = np.arange(len(positions))
    tokens[block, title_limits[:, 0]] = sep_id
    tokens[block, body_limits[:, 0]] = sep_id
    return tokens
