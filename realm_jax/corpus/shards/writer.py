"""Shards written array by array, with nothing but buffers in memory."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.manifest import FileRecord, ShardRecord
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.blocks import (
  PLAIN_OF_BLOCKS,
  RAGGED_OF_BLOCKS,
  RAGGED_OF_DOCUMENTS,
  Blocks,
  shard_cuts,
)
from realm_jax.files.checksum import sha256_of

# NumPy aligns data to 64 bytes. The header is rewritten when the number of
# rows is known, so its size is fixed; the longest one takes 100 bytes.
_HEADER_BYTES = 128


def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
  """Returns the header of a version 1.0 .npy file, of `_HEADER_BYTES`."""
  fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
  text = repr(fields).encode("latin1")
  magic = b"\x93NUMPY\x01\x00"
  length = _HEADER_BYTES - len(magic) - 2
  return (
    magic + length.to_bytes(2, "little") + text.ljust(length - 1, b" ") + b"\n"
  )


class GrowingArray:
  """A .npy file that grows by appending."""

  def __init__(self, path: Path, dtype: np.dtype, trailing: tuple[int, ...]):
    self.file = path.open("wb")
    self.file.write(bytes(_HEADER_BYTES))
    self._dtype = dtype
    self._trailing = trailing
    self.rows = 0

  def append(self, values: np.ndarray | bytes) -> None:
    """Appends rows: `[n, *trailing]` of any integer dtype, or text."""
    self.rows += len(values)
    if not isinstance(values, bytes):
      values = np.ascontiguousarray(values, self._dtype).tobytes()
    self.file.write(values)

  def finish(self) -> None:
    """Completes the file; whoever moves it into place syncs it."""
    self.file.seek(0)
    self.file.write(_npy_header(self._dtype, (self.rows, *self._trailing)))
    self.file.close()


def file_record(path: Path) -> FileRecord:
  """Returns the size and checksum of a file, for the manifest."""
  return FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path))


class ShardWriter:
  """A new shard folder, to which whole documents are appended."""

  def __init__(self, directory: Path, *, vocab_size: int):
    directory.mkdir(parents=True)
    self.directory = directory
    self.num_blocks = self.num_documents = self.num_tokens = 0
    self._span_kinds: dict[str, int] = {}
    self.arrays: dict[str, GrowingArray] = {}
    for name, (dtype, trailing) in shard_format.ARRAYS.items():
      if name == "token_ids":
        dtype = shard_format.token_dtype(vocab_size)
      path = directory / f"{name}.npy"
      self.arrays[name] = GrowingArray(path, dtype, trailing)
      if name.endswith("_offsets"):
        self.arrays[name].append(np.zeros(1, np.int64))

  def add_document(
    self, *, document_id: str, title: str, url: str, num_blocks: int
  ) -> None:
    """Begins a document; calls of `add_block` follow."""
    self.arrays["document_starts"].append(np.array([self.num_blocks]))
    self._append_item("document_ids", document_id.encode())
    self._append_item("titles", title.encode())
    self._append_item("urls", url.encode())
    self.num_documents += 1
    self.num_blocks += num_blocks

  def add_block(
    self,
    *,
    block_id: int,
    content_hash: int,
    title_length: int,
    token_ids: Int[np.ndarray, " l"],
    byte_ranges: Int[np.ndarray, "b 2"],
    sentences: Int[np.ndarray, "s 2"],
    salient_spans: Int[np.ndarray, "p 2"],
    salient_span_kinds: Sequence[str],
    body: bytes,
  ) -> None:
    """Adds one block of the current document."""
    kinds = self._span_kinds
    numbers = [kinds.setdefault(k, len(kinds)) for k in salient_span_kinds]
    self.arrays["block_ids"].append(np.array([block_id]))
    self.arrays["content_hashes"].append(np.array([content_hash]))
    self.arrays["title_lengths"].append(np.array([title_length]))
    self._append_item("token_ids", token_ids)
    self._append_item("byte_ranges", byte_ranges)
    self._append_item("sentences", sentences)
    self._append_item("salient_spans", salient_spans)
    self.arrays["salient_span_kinds"].append(np.array(numbers, np.int64))
    self._append_item("bodies", body)
    self.num_tokens += len(token_ids)

  def append(self, blocks: Blocks) -> None:
    """Adds whole documents with their blocks."""
    given, arrays = blocks.arrays, self.arrays
    for name in PLAIN_OF_BLOCKS:
      arrays[name].append(given[name])
    starts = given["document_starts"][:-1] + self.num_blocks
    arrays["document_starts"].append(starts)
    for name in (*RAGGED_OF_BLOCKS, *RAGGED_OF_DOCUMENTS):
      offsets = given[f"{name}_offsets"][1:] + arrays[name].rows
      arrays[f"{name}_offsets"].append(offsets)
      arrays[name].append(given[name])
    arrays["salient_span_kinds"].append(self._kind_numbers(blocks))
    self.num_documents += blocks.num_documents
    self.num_blocks += blocks.num_blocks
    self.num_tokens += len(given["token_ids"])

  def _kind_numbers(self, blocks: Blocks) -> Int[np.ndarray, " p"]:
    """Returns the kinds of spans, numbered as the shard first has them."""
    given = blocks.arrays["salient_span_kinds"]
    used, first = np.unique(given, return_index=True)
    table = np.zeros(len(blocks.span_kinds), np.int64)
    for number in used[np.argsort(first)].tolist():
      kind = blocks.span_kinds[number]
      table[number] = self._span_kinds.setdefault(kind, len(self._span_kinds))
    return table[given]

  def _append_item(self, name: str, values: np.ndarray | bytes) -> None:
    self.arrays[name].append(values)
    self.arrays[f"{name}_offsets"].append(np.array([self.arrays[name].rows]))

  def finish(self) -> ShardRecord:
    """Completes the files; returns the shard's record for the manifest."""
    self.arrays["document_starts"].append(np.array([self.num_blocks]))
    for array in self.arrays.values():
      array.finish()
    return ShardRecord(
      name=self.directory.name,
      num_blocks=self.num_blocks,
      num_documents=self.num_documents,
      num_tokens=self.num_tokens,
      span_kinds=list(self._span_kinds),
      files={
        path.name: file_record(path)
        for path in sorted(self.directory.iterdir())
      },
    )


@dataclasses.dataclass
class ShardSeries:
  """New shards, written one after the other to folders of `directory`.

  `name` maps a shard's number, from 0, to its folder's name. A shard ends at
  `blocks_per_shard` blocks, once the current document is complete.
  """

  directory: Path
  name: Callable[[int], str]
  _: dataclasses.KW_ONLY
  vocab_size: int
  blocks_per_shard: int

  def __post_init__(self) -> None:
    self._shard: ShardWriter | None = None
    self._finished: list[ShardRecord] = []

  @property
  def shard(self) -> ShardWriter:
    """The shard to which the next document is added."""
    if self._shard and self._shard.num_blocks >= self.blocks_per_shard:
      self.finish()
    if self._shard is None:
      directory = self.directory / self.name(len(self._finished))
      self._shard = ShardWriter(directory, vocab_size=self.vocab_size)
    return self._shard

  def append(self, blocks: Blocks) -> None:
    """Adds whole documents, to as many shards as they take."""
    cuts = shard_cuts(
      blocks.blocks_per_document,
      filled=self._shard.num_blocks if self._shard else 0,
      blocks_per_shard=self.blocks_per_shard,
    )
    for first, limit in itertools.pairwise([0, *cuts, blocks.num_documents]):
      if first < limit:
        self.shard.append(blocks.between(first, limit))

  def finish(self) -> list[ShardRecord]:
    """Completes all shards; returns their records for the manifest."""
    if self._shard:
      self._finished.append(self._shard.finish())
      self._shard = None
    return self._finished

  def close(self) -> None:
    """Closes the files of a shard that is not complete and will be deleted."""
    for array in self._shard.arrays.values() if self._shard else ():
      # Buffered rows may find the disk full again.
      with contextlib.suppress(OSError):
        array.file.close()
