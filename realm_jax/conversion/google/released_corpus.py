"""A corpus of blocks that another system has split: a record is a block."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.options import require_block_length
from realm_jax.corpus.block_builder import BlockBuilder, chunks
from realm_jax.corpus.directory_writer import CorpusDirectoryWriter
from realm_jax.corpus.documents import Document
from realm_jax.corpus.shard import (
  MIN_BLOCK_LENGTH,
  NUM_SPECIAL_TOKENS,
  Blocks,
  write_shards,
)
from realm_jax.corpus.summary import BuildSummary
from realm_jax.text.salient_spans import tag
from realm_jax.text.wordpieces import WordpieceVocabulary

_VERSION = 1
# Block length that cuts no block.
_UNLIMITED = 1 << 30


def write_released_corpus(
  records: Iterable[bytes],
  output_dir: epath.PathLike,
  *,
  vocabulary: WordpieceVocabulary,
  num_blocks: int,
  titles: Iterable[bytes] | None = None,
  block_length: int | None = None,
  name: str = "released",
) -> None:
  """Writes a corpus directory with the records as its blocks, in order.

  Each block is a document of its own and is named by its row, so that every
  import of the same records gives the same block ids.

  Args:
    records: Texts in UTF-8.
    output_dir: Corpus directory; it appears complete or not at all.
    vocabulary: Vocabulary of the model.
    num_blocks: Number of records that there must be.
    titles: Title of each record; None leaves titles empty.
    block_length: Maximum wordpieces of `[CLS] title [SEP] body [SEP]`. Longer
      blocks lose their last tokens, but no text, and are counted. None fits
      all.
    name: Name of the corpus, part of its block ids.

  Raises:
    ConversionError: If there are more or fewer records or titles, or one is
      not UTF-8.
    CorpusError: If `output_dir` cannot be written.
  """
  require_block_length(block_length)
  documents = _documents(records, titles, num_blocks)
  with (
    CorpusDirectoryWriter.open(
      output_dir,
      pieces=vocabulary.pieces,
      name=name,
    ) as writer,
    Progress("blocks written", total=num_blocks) as progress,
  ):
    builder = BlockBuilder(
      vocabulary=vocabulary,
      corpus_name=name,
      block_length=block_length or _UNLIMITED,
      tagger=tag,
    )
    summary = BuildSummary()

    def built_blocks() -> Iterator[Blocks]:
      for chunk in chunks(documents):
        built = builder.build(chunk)
        summary.add(built, len(chunk))
        progress.advance(len(chunk))
        yield built.blocks

    shards = write_shards(
      writer.staging, built_blocks(), vocab_size=len(vocabulary.pieces)
    )
    longest = block_length or MIN_BLOCK_LENGTH
    for shard in [] if block_length else shards:
      path = writer.staging / shard["name"] / "token_ids_offsets.npy"
      sizes = np.diff(np.load(path))
      longest = max(longest, NUM_SPECIAL_TOKENS + int(sizes.max()))
    writer.finish(
      version=_VERSION,
      block_length=longest,
      summary=summary.to_json(),
      shards=shards,
    )
  logging.info(
    "Wrote %d blocks of at most %d wordpieces to %s",
    num_blocks,
    longest,
    output_dir,
  )


def _documents(
  records: Iterable[bytes], titles: Iterable[bytes] | None, num_blocks: int
) -> Iterator[Document]:
  """Yields a document for each record, and checks how many there are."""
  pairs: Iterable[tuple[bytes | None, bytes | None]]
  if titles is None:
    pairs = ((record, b"") for record in records)
  else:
    pairs = itertools.zip_longest(records, titles)
  count = 0
  for body, title in pairs:
    if body is None or title is None:
      shorter = "records" if body is None else "titles"
      raise ConversionError(
        f"there are {count} {shorter}, and more of the others; want one title "
        "for each record"
      )
    if count == num_blocks:
      raise _disagreement("more", num_blocks)
    place = f"record {count}"
    name = _decoded(title, f"title {count}")
    text = _decoded(body, place)
    yield Document(str(count), name, text, "", place, is_block=True)
    count += 1
  if count < num_blocks:
    raise _disagreement(str(count), num_blocks)


def _disagreement(records: str, num_blocks: int) -> ConversionError:
  return ConversionError(
    f"{num_blocks} vectors, and {records} records; want a vector for each "
    "record, in the same order: are both of one release?"
  )


def _decoded(record: bytes, name: str) -> str:
  try:
    return record.decode("utf-8")
  except UnicodeDecodeError as error:
    raise ConversionError(
      f"{name} is not UTF-8 (byte {error.start} of {len(record)}); want texts"
    ) from None
