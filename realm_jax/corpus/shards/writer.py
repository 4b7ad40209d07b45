"""Writes one shard, array by array, with nothing but buffers in memory."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.corpus.shards import format as shard_format

# NumPy aligns data to 64 bytes; the header is rewritten when the number of
# rows is known, so its room is fixed: the longest one we write takes 100.
_HEADER_BYTES = 128


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
  """The header of a version 1.0 .npy file, in `_HEADER_BYTES` bytes."""
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
    self._file = path.open("wb")
    self._file.write(bytes(_HEADER_BYTES))
    self._dtype = dtype
    self._trailing = trailing
    self.rows = 0

  def append(self, values: np.ndarray) -> None:
    """Appends rows; `values` is `[n, *trailing]` of any integer dtype."""
    self._file.write(np.ascontiguousarray(values, self._dtype).tobytes())
    self.rows += len(values)

  def append_bytes(self, values: bytes) -> None:
    """Appends text to a byte array."""
    self._file.write(values)
    self.rows += len(values)

  def close(self) -> None:
    """Writes the header and puts the file safely on disk."""
    self._file.seek(0)
    self._file.write(npy_header(self._dtype, (self.rows, *self._trailing)))
    self._file.flush()
    os.fsync(self._file.fileno())
    self._file.close()

  def abandon(self) -> None:
    """Lets go of a file that will be deleted."""
    # What is still buffered may find the disk full again.
    with contextlib.suppress(OSError):
      self._file.close()


def file_record(path: Path) -> dict[str, Any]:
  """Size and checksum of a file, as the manifest lists them."""
  with path.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  return {"bytes": path.stat().st_size, "sha256": digest}


class ShardWriter:
  """Appends whole documents to a new shard directory."""

  def __init__(self, directory: Path, *, vocab_size: int):
    directory.mkdir(parents=True)
    self.directory = directory
    self.num_blocks = self.num_documents = self.num_tokens = 0
    self._arrays = {}
    for name, (dtype, trailing) in shard_format.ARRAYS.items():
      if name == "token_ids":
        dtype = shard_format.token_dtype(vocab_size)
      path = directory / f"{name}.npy"
      self._arrays[name] = GrowingArray(path, dtype, trailing)
      if name.endswith("_offsets"):
        self._arrays[name].append(np.zeros(1, np.int64))

  def add_document(
    self, *, document_id: str, title: str, url: str, num_blocks: int
  ) -> None:
    """Opens a document; its blocks follow."""
    self._arrays["document_starts"].append(np.array([self.num_blocks]))
    self._append_text("document_ids", document_id.encode())
    self._append_text("titles", title.encode())
    self._append_text("urls", url.encode())
    self.num_documents += 1
    self.num_blocks += num_blocks

  def add_block(
    self,
    *,
    block_id: int,
    title_length: int,
    token_ids: np.ndarray,
    byte_ranges: np.ndarray,
    sentences: np.ndarray,
    salient_spans: np.ndarray,
    body: bytes,
  ) -> None:
    """Adds one block of the open document."""
    self._arrays["block_ids"].append(np.array([block_id]))
    self._arrays["title_lengths"].append(np.array([title_length]))
    self._append_rows("token_ids", token_ids)
    self._append_rows("byte_ranges", byte_ranges)
    self._append_rows("sentences", sentences)
    self._append_rows("salient_spans", salient_spans)
    self._append_text("bodies", body)
    self.num_tokens += len(token_ids)

  def _append_rows(self, name: str, rows: np.ndarray) -> None:
    self._arrays[name].append(rows)
    self._end_item(name)

  def _append_text(self, name: str, text: bytes) -> None:
    self._arrays[name].append_bytes(text)
    self._end_item(name)

  def _end_item(self, name: str) -> None:
    self._arrays[f"{name}_offsets"].append(np.array([self._arrays[name].rows]))

  def abandon(self) -> None:
    """Lets go of the files, which are of no use; twice does no harm."""
    for array in self._arrays.values():
      array.abandon()

  def close(self) -> dict[str, Any]:
    """Completes the files; returns the shard's entry in the manifest."""
    self._arrays["document_starts"].append(np.array([self.num_blocks]))
    for array in self._arrays.values():
      array.close()
    return {
      "name": self.directory.name,
      "num_blocks": self.num_blocks,
      "num_documents": self.num_documents,
      "num_tokens": self.num_tokens,
      "files": {
        path.name: file_record(path)
        for path in sorted(self.directory.iterdir())
      },
    }


class ShardSeries:
  """New shards, one after the other.

  Args:
    directory: where their folders go.
    name: of the shard of a number, from 0.
    vocab_size: of the vocabulary.
    blocks_per_shard: a shard ends with the document that reaches this.
  """

  def __init__(
    self,
    directory: Path,
    name: Callable[[int], str],
    *,
    vocab_size: int,
    blocks_per_shard: int,
  ):
    self._directory = directory
    self._name = name
    self._vocab_size = vocab_size
    self._blocks_per_shard = blocks_per_shard
    self._shard: ShardWriter | None = None
    self._closed: list[dict[str, Any]] = []

  @property
  def shard(self) -> ShardWriter:
    """Where the next document goes."""
    if self._shard and self._shard.num_blocks >= self._blocks_per_shard:
      self.close()
    if self._shard is None:
      directory = self._directory / self._name(len(self._closed))
      self._shard = ShardWriter(directory, vocab_size=self._vocab_size)
    return self._shard

  def close(self) -> list[dict[str, Any]]:
    """Completes all; returns their entries in the manifest."""
    if self._shard:
      self._closed.append(self._shard.close())
      self._shard = None
    return self._closed

  def abandon(self) -> None:
    """Lets go of a shard that is not complete."""
    if self._shard:
      self._shard.abandon()
