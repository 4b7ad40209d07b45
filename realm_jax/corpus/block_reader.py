"""Blocks read by row from memory-mapped shards."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.shards.format import NUM_SPECIAL_TOKENS
from realm_jax.corpus.shards.shard import Shard, ragged_indices

NULL_ROW = -1


class BlockReader:
  """The blocks of some shards, by row.

  Rows, 0…N−1, follow the order of the shards, in which `sizes` counts the
  blocks that are not removed. The null block is row −1: it is not stored and
  reads as `[CLS] [SEP] [SEP]`. Other rows raise `IndexError`. `span_kinds` has
  the names of the kinds of salient spans.
  """

  def __init__(
    self,
    shards: Sequence[Shard],
    sizes: Sequence[int],
    *,
    cls_id: int,
    sep_id: int,
  ):
    self.shards = shards
    self.num_blocks = sum(sizes)
    self._first_rows = np.concatenate([[0], np.cumsum(sizes)])
    self._cls_id, self._sep_id = cls_id, sep_id
    # Kinds of salient spans by name, and each shard's numbers of them as
    # numbers of all.
    kinds = dict.fromkeys(kind for s in shards for kind in s.span_kinds)
    self.span_kinds = tuple(kinds)
    self._kinds_of_shard = {
      shard: np.array([*map(self.span_kinds.index, shard.span_kinds)], np.int32)
      for shard in shards
    }

  # --- All blocks -------------------------------------------------------

  def _by_block(self, name: str) -> np.ndarray:
    arrays = [s.without_removed(s.array(name)) for s in self.shards]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

  @functools.cached_property
  def block_ids(self) -> Int[np.ndarray, " N"]:
    """The stable id of each block: see `block_identity.block_id`."""
    return self._by_block("block_ids")

  @functools.cached_property
  def content_hashes(self) -> Int[np.ndarray, " N"]:
    """A hash of each block's title and body: see `block_identity`."""
    return self._by_block("content_hashes")

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " N"]:
    """Tokens of `[CLS] title [SEP] body [SEP]`, int32."""
    lengths = [s.without_removed(s.lengths) for s in self.shards]
    return (np.concatenate(lengths) + NUM_SPECIAL_TOKENS).astype(np.int32)

  @functools.cached_property
  def _id_order(self) -> Int[np.ndarray, " N"]:
    return np.argsort(self.block_ids, kind="stable").astype(np.int32)

  def rows_of(
    self, ids: Int[np.ndarray, "*s"] | np.int64
  ) -> Int[np.ndarray, "*s"]:
    """Returns the rows of block ids, int32; −1 for an id that is not there."""
    ids = np.asarray(ids, np.int64)
    index = np.searchsorted(self.block_ids, ids, sorter=self._id_order)
    rows = self._id_order[np.minimum(index, self.num_blocks - 1)]
    return np.where(self.block_ids[rows] == ids, rows, np.int32(NULL_ROW))

  # --- One block --------------------------------------------------------

  def locate(self, row: int) -> tuple[Shard, int]:
    """Returns a block's shard, and its position in that shard."""
    if not 0 <= row < self.num_blocks:
      raise IndexError(
        f"row {row} is not in this corpus of {self.num_blocks} blocks"
      )
    number = int(np.searchsorted(self._first_rows, row, side="right")) - 1
    shard_row = np.asarray(row - self._first_rows[number])
    return self.shards[number], int(self.shards[number].positions(shard_row))

  def _item(self, name: str, row: int) -> np.ndarray:
    shard, position = self.locate(row)
    return shard.item(name, position)

  def _document_text(self, name: str, row: int) -> str:
    shard, position = self.locate(row)
    return shard.text(name, shard.document(position))

  def document_id(self, row: int) -> str:
    """Returns the id of the block's document."""
    return self._document_text("document_ids", row)

  def title(self, row: int) -> str:
    """Returns the title of the block's document."""
    return self._document_text("titles", row)

  def url(self, row: int) -> str:
    """Returns the document's URL; empty if the input did not give one."""
    return self._document_text("urls", row)

  def ordinal(self, row: int) -> int:
    """Returns the block's number among those of its document, from 0."""
    shard, position = self.locate(row)
    return position - shard.document_range(shard.document(position))[0]

  def block_name(self, row: int) -> str:
    """Returns `document id:ordinal`, the block's id for people."""
    return f"{self.document_id(row)}:{self.ordinal(row)}"

  def body(self, row: int) -> str:
    """Returns the block's text as it was written."""
    shard, position = self.locate(row)
    return shard.text("bodies", position)

  def token_ids(self, row: int) -> Int[np.ndarray, " l"]:
    """Returns the tokens of title and body, int32, without specials."""
    return self._item("token_ids", row).astype(np.int32)

  def title_length(self, row: int) -> int:
    """Returns how many of `token_ids` belong to the title."""
    shard, position = self.locate(row)
    return int(shard.array("title_lengths")[position])

  def body_token_ids(self, row: int) -> Int[np.ndarray, " b"]:
    """Returns the tokens of the body, int32."""
    return self.token_ids(row)[self.title_length(row) :]

  def body_byte_ranges(self, row: int) -> Int[np.ndarray, "b 2"]:
    """Returns each body token's (start, limit) in the UTF-8 of `body(row)`."""
    return self._item("byte_ranges", row)

  def sentences(self, row: int) -> Int[np.ndarray, "s 2"]:
    """Returns the token ranges of the body's sentences."""
    return self._item("sentences", row)

  def salient_spans(self, row: int) -> Int[np.ndarray, "p 2"]:
    """Returns token ranges of the body, each inside one sentence."""
    return self._item("salient_spans", row)

  def salient_span_kinds(self, row: int) -> Int[np.ndarray, " p"]:
    """Returns the kind of each of `salient_spans`, an index of `span_kinds`."""
    shard, position = self.locate(row)
    return self._kinds_of_shard[shard][shard.salient_span_kinds(position)]

  def answer_text(self, row: int, start: int, limit: int) -> str:
    """Returns body tokens `[start, limit)` as they were written."""
    ranges = self.body_byte_ranges(row)
    if not 0 <= start < limit <= len(ranges):
      raise IndexError(
        f"tokens [{start}, {limit}) are not in the {len(ranges)} of row {row}"
      )
    text = self._item("bodies", row)[ranges[start, 0] : ranges[limit - 1, 1]]
    return text.tobytes().decode("utf-8")

  # --- Many blocks ------------------------------------------------------

  def _by_shard(
    self, rows: Int[np.ndarray, " n"]
  ) -> Iterator[tuple[Shard, Int[np.ndarray, " m"], Int[np.ndarray, " m"]]]:
    """Yields each shard, the indices of its rows in `rows`, and positions."""
    if rows.size and not NULL_ROW <= rows.min() <= rows.max() < self.num_blocks:
      raise IndexError(
        f"rows {rows.min()}…{rows.max()} are not in this corpus of "
        f"{self.num_blocks} blocks (and {NULL_ROW}, the null block)"
      )
    owners = np.searchsorted(self._first_rows, rows, side="right") - 1
    for number in np.unique(owners[rows >= 0]).tolist():
      indices = np.flatnonzero(owners == number)
      shard, first = self.shards[number], self._first_rows[number]
      yield shard, indices, shard.positions(rows[indices] - first)

  def gather(
    self, rows: Int[np.ndarray, "*s"], length: int
  ) -> Int[np.ndarray, "*s {length}"]:
    """Returns `[CLS] title [SEP] body [SEP]` of many blocks, padded with 0.

    Training reads these tokens, int32, at every step. A block that is too long
    loses the end of its body and keeps its last [SEP].
    """
    if length < NUM_SPECIAL_TOKENS:
      raise ValueError(f"length={length} cannot hold [CLS] [SEP] [SEP]")
    rows = np.asarray(rows)
    flat_rows = rows.reshape(-1)
    ids = {"cls_id": self._cls_id, "sep_id": self._sep_id}
    tokens = np.zeros((flat_rows.size, length), np.int32)
    tokens[:, 0] = self._cls_id
    tokens[:, 1:NUM_SPECIAL_TOKENS] = self._sep_id
    for shard, indices, positions in self._by_shard(flat_rows):
      tokens[indices] = shard.gather(positions, length, **ids)
    return tokens.reshape(*rows.shape, length)

  def random_sentences(
    self,
    rows: Int[np.ndarray, " n"],
    length: int,
    rng: np.random.Generator,
  ) -> Int[np.ndarray, "n {length}"]:
    """Returns `[CLS] sentence [SEP]`, padded with 0, from each of the blocks.

    A block without sentences gives `[CLS] [SEP]`.
    """
    queries = np.zeros((len(rows), length), np.int32)
    for query, row in zip(queries, rows.tolist(), strict=True):
      sentences = self.sentences(row)
      start, limit = rng.choice(sentences) if len(sentences) else (0, 0)
      words = self.body_token_ids(row)[start:limit][: length - 2]
      query[: len(words) + 2] = [self._cls_id, *words, self._sep_id]
    return queries

  def bodies_utf8(self, rows: Int[np.ndarray, " n"]) -> list[bytes]:
    """Returns the texts of many bodies as they were written, in UTF-8."""
    rows = np.asarray(rows)
    bodies = [b""] * rows.size
    for shard, indices, positions in self._by_shard(rows):
      for i, position in zip(indices.tolist(), positions.tolist(), strict=True):
        bodies[i] = shard.item("bodies", position).tobytes()
    return bodies

  def body_tokens_flat(
    self, rows: Int[np.ndarray, " n"]
  ) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n+1"]]:
    """Returns body tokens of many blocks end to end, and their offsets."""
    rows = np.asarray(rows)
    lengths = np.zeros(rows.size, np.int64)
    located = []
    for shard, indices, positions in self._by_shard(rows):
      starts, lengths[indices] = shard.body_locations(positions)
      located.append((shard, indices, starts))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.zeros(offsets[-1], np.int32)
    for shard, indices, starts in located:
      source = ragged_indices(starts, lengths[indices])
      target = ragged_indices(offsets[indices], lengths[indices])
      tokens[target] = shard.array("token_ids")[source]
    return tokens, offsets
