"""Parts: the blocks of one chunk of rows, in a file, and what it says of them.

A part does not depend on the others, so that any process may make it. Which of
its documents repeat an earlier id, and where shards end, is not known yet.
"""

import dataclasses
import functools
import io
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.corpus.building.block_builder import BlockBuilder, BuiltBlocks
from realm_jax.corpus.building.sources.document_source import (
  DocumentSource,
  position_of,
)
from realm_jax.corpus.building.sources.documents import Document
from realm_jax.corpus.building.sources.input_file import Chunk
from realm_jax.corpus.building.sources.seen_ids import hash63
from realm_jax.corpus.building.summary import NO_WORDS, BuildSummary
from realm_jax.corpus.errors import InputError
from realm_jax.corpus.shards.blocks import Blocks
from realm_jax.files.whole.whole_file import whole_file
from realm_jax.text.salient_spans import Tagger
from realm_jax.text.wordpieces import vocabulary_of

_HEADER = "header"
_ROWS = ("positions", "keys", "row_documents")
_OF_DOCUMENTS = ("documents", "counts", "spans", "unaligned", "cut_ends")


class Part(NamedTuple):
  """A part as it is read.

  Attributes:
    path: Its file.
    built: Its blocks, whose arrays are read when they are used.
    positions: Of each row that is a document, its position in the input.
    keys: Of each of them, the hash of its id.
    row_documents: Of each of them, its document among those of `built`; −1 if
      it has no blocks.
    names: Of each of them, its id and its title.
    left_out: Of rows without blocks, position and reason.
    malformed: Of rows that cannot be read, position and error.
    file: Number of the rows' file.
    num_rows: Number of rows.
    bytes_read: Bytes of the file that had been read.
  """

  path: str
  built: BuiltBlocks
  positions: Int[np.ndarray, " r"]
  keys: Int[np.ndarray, " r"]
  row_documents: Int[np.ndarray, " r"]
  names: Sequence[tuple[str, str]]
  left_out: Sequence[tuple[int, str]]
  malformed: Sequence[tuple[int, str]]
  file: int
  num_rows: int
  bytes_read: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartMaker:
  """Makes a part of a chunk; it can be sent to other processes.

  Attributes:
    source: The input.
    pieces: The vocabulary.
    directory: Folder of the parts, which all processes can access.
    stop_at_malformed: Whether a malformed row is an error here already, rather
      than when the parts are read in order.
  """

  source: DocumentSource
  pieces: tuple[str, ...]
  corpus_name: str
  block_length: int
  tagger: Tagger | None
  directory: str
  stop_at_malformed: bool = False

  @functools.cached_property
  def _builder(self) -> BlockBuilder:
    return BlockBuilder(
      vocabulary=vocabulary_of(self.pieces),
      corpus_name=self.corpus_name,
      block_length=self.block_length,
      tagger=self.tagger,
    )

  def __call__(self, chunk: Chunk) -> str:
    """Writes a part; returns its path.

    Raises:
      InputError: A row is malformed, if `stop_at_malformed`.
    """
    documents: list[Document] = []
    entries: list[tuple[int, int]] = []  # Position, and number in `documents`.
    names, left_out, malformed = [], [], []
    for number, row in enumerate(chunk.rows, start=chunk.first):
      position = position_of(chunk.file, number)
      try:
        entry = self.source.parse(position, row, of_update=False)
      except InputError as error:
        if self.stop_at_malformed:
          self.source.refuse_malformed(position, str(error), BuildSummary())
        malformed.append((position, str(error)))
        continue
      assert isinstance(entry, Document)  # Removals are rows of updates alone.
      names.append((entry.id, entry.title))
      reason = self.source.reason_to_drop(entry)
      if reason is None:
        entries.append((position, len(documents)))
        documents.append(entry)
      else:
        entries.append((position, -1))
        left_out.append((position, reason))
    built = self._builder.build(documents)
    # Documents without words have no blocks.
    indices = np.full(len(documents) + 1, -1, np.int64)
    indices[built.documents] = np.arange(len(built.documents))
    positions, numbers = np.array(entries, np.int64).reshape(-1, 2).T
    row_documents = indices[numbers]
    wordless = positions[(row_documents < 0) & (numbers >= 0)]
    left_out += [(position, NO_WORDS) for position in wordless.tolist()]
    header = {
      "span_kinds": built.blocks.span_kinds,
      "names": names,
      "left_out": left_out,
      "malformed": malformed,
      "file": chunk.file,
      "num_rows": len(chunk.rows),
      "bytes_read": chunk.bytes_read,
    }
    path = epath.Path(self.directory) / part_name(chunk.file, chunk.index)
    _write(
      path,
      {
        **built.blocks.arrays,
        **{name: getattr(built, name) for name in _OF_DOCUMENTS},
        "positions": positions,
        "keys": np.array([hash63(name) for name, _ in names], np.int64),
        "row_documents": row_documents,
        _HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8),
      },
    )
    return str(path)


def part_name(file: int, index: int) -> str:
  """Returns the file of a part; names in order are parts in order."""
  return f"part-{file:06d}-{index:08d}.npz"


def _write(path: epath.Path, arrays: dict[str, np.ndarray]) -> None:
  """Writes a part, which appears complete or not at all."""
  # A part that is made twice, perhaps at the same time, is the same both times.
  with (
    whole_file(path, several_writers=True) as partial,
    partial.open("wb") as file,
  ):
    np.savez(file, allow_pickle=False, **arrays)


class _LazyArrays(dict[str, np.ndarray]):
  """Arrays of a part, read when they are used for the first time."""

  def __init__(self, stored: np.lib.npyio.NpzFile):
    super().__init__()
    self._stored = stored

  def __missing__(self, name: str) -> np.ndarray:
    self[name] = self._stored[name]
    return self[name]


def read_part(path: str) -> Part:
  """Reads a part: the small arrays now, the others when they are used."""
  stored = np.load(io.BytesIO(epath.Path(path).read_bytes()))
  header = json.loads(stored[_HEADER].tobytes())
  blocks = Blocks(_LazyArrays(stored), span_kinds=header.pop("span_kinds"))
  built = BuiltBlocks(blocks, **{name: stored[name] for name in _OF_DOCUMENTS})
  return Part(path, built, **{name: stored[name] for name in _ROWS}, **header)


def part_paths(directory: epath.Path) -> Iterator[str]:
  """Yields the paths of all parts, in the order of the input."""
  yield from sorted(str(path) for path in directory.glob("part-*.npz"))
