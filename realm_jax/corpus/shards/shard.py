"""Reads one shard; rows here count from the shard's first block.

Blocks that an update removed keep their places in the arrays, since nothing
in a shard ever changes. Those that are left have rows of their own in each
version, which `Shard.places` turns into places.
"""

import functools
from pathlib import Path

import numpy as np
from jaxtyping import Int


def ragged_indices(
  starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " t"]:
  """`[starts[0], …, starts[0] + lengths[0] - 1, starts[1], …]`."""
  limits = np.cumsum(lengths)
  total = int(limits[-1]) if len(limits) else 0
  return np.arange(total) + np.repeat(starts - (limits - lengths), lengths)


class Shard:
  """The arrays of a shard, mapped into memory when first used.

  Args:
    directory: where they lie.
    removed: the file of the places whose blocks are gone; None where none is.
  """

  def __init__(self, directory: Path, *, removed: Path | None = None):
    self.directory = directory
    self._removed_path = removed
    self._arrays: dict[str, np.ndarray] = {}

  @functools.cached_property
  def removed(self) -> Int[np.ndarray, " r"]:
    """The places of the blocks that are gone, in order."""
    if self._removed_path is None:
      return np.zeros(0, np.int64)
    return np.load(self._removed_path, allow_pickle=False)

  @functools.cached_property
  def _rows_before_removed(self) -> Int[np.ndarray, " r"]:
    return self.removed - np.arange(len(self.removed))

  def places(self, rows: Int[np.ndarray, "*s"]) -> Int[np.ndarray, "*s"]:
    """Where in the arrays the blocks of `rows` are, which skip what is gone."""
    if self._removed_path is None:
      return rows
    before = self._rows_before_removed
    return rows + np.searchsorted(before, rows, side="right")

  def left_of(self, array: np.ndarray) -> np.ndarray:
    """An array by block without the blocks that are gone."""
    if self._removed_path is None:
      return array
    return np.delete(array, self.removed, axis=0)

  def array(self, name: str) -> np.ndarray:
    """The array `name` of `shard_format.ARRAYS`."""
    if name not in self._arrays:
      path = self.directory / f"{name}.npy"
      mapped = np.load(path, mmap_mode="r", allow_pickle=False)
      # A plain view: indexing a memmap object costs Python calls each time.
      self._arrays[name] = mapped.view(np.ndarray)
    return self._arrays[name]

  def item(self, name: str, index: int) -> np.ndarray:
    """Item `index` of a flat array with offsets; no copy."""
    offsets = self.array(f"{name}_offsets")
    return self.array(name)[offsets[index] : offsets[index + 1]]

  def text(self, name: str, index: int) -> str:
    return self.item(name, index).tobytes().decode("utf-8")

  def document(self, row: int) -> int:
    """The document, counted in the shard, that a block comes from."""
    starts = self.array("document_starts")
    return int(np.searchsorted(starts, row, side="right")) - 1

  def document_places(self, document: int) -> tuple[int, int]:
    """The place of a document's first block, and that after its last."""
    first, limit = self.array("document_starts")[document : document + 2]
    return int(first), int(limit)

  def ordinal(self, row: int) -> int:
    """A block's place among the blocks of its document."""
    return row - int(self.array("document_starts")[self.document(row)])

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " n"]:
    """Tokens of title and body, without specials."""
    return np.diff(self.array("token_ids_offsets"))

  def body_locations(
    self, rows: Int[np.ndarray, " m"]
  ) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Where bodies start in `token_ids`, and their lengths."""
    offsets, titles = (
      self.array("token_ids_offsets"),
      self.array("title_lengths"),
    )
    starts = offsets[rows] + titles[rows]
    return starts, offsets[rows + 1] - starts

  def gather(
    self,
    rows: Int[np.ndarray, " m"],
    length: int,
    *,
    cls_id: int,
    sep_id: int,
  ) -> Int[np.ndarray, "m {length}"]:
    """`[CLS] title [SEP] body [SEP]`, cut to and padded with 0 to `length`."""
    token_ids = self.array("token_ids")
    starts = self.array("token_ids_offsets")[rows]
    full_titles = self.array("title_lengths")[rows].astype(np.int64)
    titles = np.minimum(full_titles, length - 3)
    bodies = self.array("token_ids_offsets")[rows + 1] - starts - full_titles
    bodies = np.minimum(bodies, length - 3 - titles)

    column = np.arange(length)
    title_limits = titles[:, None] + 1
    body_limits = title_limits + 1 + bodies[:, None]
    in_body = column > title_limits
    # Column 1 is the title's first token; the body's is a [SEP] further on, and
    # follows what was cut of the title.
    skipped = np.where(in_body, (full_titles - titles - 1)[:, None], 0)
    source = (starts - 1)[:, None] + column + skipped
    tokens = token_ids.take(source, mode="clip").astype(np.int32)
    tokens[column >= body_limits] = 0
    tokens[:, 0] = cls_id
    block = np.arange(len(rows))
    tokens[block, title_limits[:, 0]] = sep_id
    tokens[block, body_limits[:, 0]] = sep_id
    return tokens
