"""Blocks whose arrays are given one by one, as a corpus is written from."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.writing import (
  Blocks,
  finish,
  new_corpus,
  ragged,
  write_shards,
)

_DOCUMENTS_AT_ONCE = 1_000


class HandMade(NamedTuple):
  """A document: its id, its title, and the arrays of its blocks by name."""

  id: str
  title: str
  blocks: Sequence[dict[str, Any]]


def write_corpus(
  directory: Path,
  documents: Iterable[HandMade],
  *,
  pieces: tuple[str, ...],
  block_length: int,
) -> None:
  """Writes documents, of which a thousand are in memory at once."""
  with new_corpus(directory) as staging:
    shards = write_shards(
      staging, _chunks(directory.name, documents), vocab_size=len(pieces)
    )
    finish(
      staging,
      name=directory.name,
      pieces=pieces,
      block_length=block_length,
      summary={},
      shards=shards,
    )


def _chunks(name: str, documents: Iterable[HandMade]) -> Iterator[Blocks]:
  chunk: list[HandMade] = []
  for document in documents:
    chunk.append(document)
    if len(chunk) == _DOCUMENTS_AT_ONCE:
      yield _blocks(name, chunk)
      chunk = []
  if chunk:
    yield _blocks(name, chunk)


def _blocks(name: str, documents: Sequence[HandMade]) -> Blocks:
  rows = [block for document in documents for block in document.blocks]
  sizes = [len(document.blocks) for document in documents]
  kinds = [kind for row in rows for kind in row["salient_span_kinds"]]
  names = list(dict.fromkeys(kinds))
  ids = [
    block_id(name, document.id, ordinal)
    for document in documents
    for ordinal in range(len(document.blocks))
  ]
  arrays = {
    "block_ids": np.array(ids),
    "content_hashes": np.array([row["content_hash"] for row in rows]),
    "title_lengths": np.array([row["title_length"] for row in rows]),
    "salient_span_kinds": np.array([names.index(k) for k in kinds], np.int64),
    "document_starts": np.cumsum([0, *sizes]),
    "document_hashes": np.zeros(len(documents), np.int64),
    **ragged("document_ids", [document.id.encode() for document in documents]),
    **ragged("titles", [document.title.encode() for document in documents]),
    **ragged("urls", [b""] * len(documents)),
    **ragged("bodies", [row["body"] for row in rows]),
  }
  for array in ("token_ids", "byte_ranges", "sentences", "salient_spans"):
    arrays |= ragged(array, [row[array] for row in rows])
  return Blocks(arrays, names)
