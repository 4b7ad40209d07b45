"""A corpus of blocks that another system has split: a record is a block."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int

from realm_jax.console.progress import Progress
from realm_jax.conversion.errors import ConversionError
from realm_jax.corpus.building.block_builder import (
  SalientSpans,
  TokenizedDocument,
  tokenized,
)
from realm_jax.corpus.building.block_identity import block_id, content_hash
from realm_jax.corpus.building.directory_writer import CorpusDirectoryWriter
from realm_jax.corpus.building.documents import Document
from realm_jax.corpus.building.splitting import align_sentences
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.shards.format import MIN_BLOCK_LENGTH, NUM_SPECIAL_TOKENS
from realm_jax.corpus.shards.writer import ShardWriter
from realm_jax.text.salient_spans import tag
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.wordpieces import WordpieceVocabulary

_BLOCKS_PER_SHARD = 200_000
_VERSION = 1


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
      blocks_per_shard=_BLOCKS_PER_SHARD,
      name=name,
    ) as writer,
    Progress("blocks written", total=num_blocks) as progress,
  ):
    blocks = _BlockWriter(name, block_length)
    for document in tokenized(documents, vocabulary):
      blocks.add(document, writer.shard)
      progress.advance()
    longest = block_length or blocks.longest
    writer.finish(
      version=_VERSION, block_length=longest, summary=blocks.summary.to_json()
    )
  logging.info(
    "Wrote %d blocks of at most %d wordpieces to %s",
    num_blocks,
    longest,
    output_dir,
  )


def require_block_length(block_length: int | None) -> None:
  """Raises `ConversionError` for a length that fits no block."""
  if block_length is not None and block_length < MIN_BLOCK_LENGTH:
    raise ConversionError(
      f"--block_length={block_length} is too short for a title and a body; "
      f"give {MIN_BLOCK_LENGTH} or more (released REALM has 288)"
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
    yield Document(str(count), name, text, url="", place=place)
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


class _BlockWriter:
  """Appends each document to a shard as one block."""

  def __init__(self, corpus_name: str, block_length: int | None):
    self._corpus_name = corpus_name
    self._block_length = block_length
    self.summary = BuildSummary()
    self.longest = MIN_BLOCK_LENGTH

  def add(self, tokens: TokenizedDocument, shard: ShardWriter) -> None:
    """Appends a document."""
    document, title_ids, body_ids, byte_ranges = tokens
    summary = self.summary
    sentences = align_sentences(
      sentence_ranges(document.text), byte_ranges
    ).token_ranges
    tagger = tag if len(body_ids) else None
    spans = SalientSpans.of(
      document, byte_ranges, sentences, tagger=tagger, summary=summary
    )
    title_ids, body_ids = self._cut(title_ids, body_ids)
    size = len(body_ids)
    sentences = np.minimum(sentences[sentences[:, 0] < size], size)
    if not len(sentences):
      # Inverse cloze draws a sentence of each block, which may be empty.
      sentences = np.zeros((1, 2), np.int64)
    shard.add_document(
      document_id=document.id, title=document.title, url="", num_blocks=1
    )
    body = document.text.encode()
    whole = spans.token_ranges[:, 1] <= size
    shard.add_block(
      block_id=block_id(self._corpus_name, document.id, 0),
      content_hash=content_hash(document.title, body),
      title_length=len(title_ids),
      token_ids=np.concatenate([title_ids, body_ids]),
      byte_ranges=byte_ranges[:size],
      sentences=sentences,
      salient_spans=spans.token_ranges[whole],
      salient_span_kinds=list(itertools.compress(spans.kinds, whole)),
      body=body,
    )
    length = NUM_SPECIAL_TOKENS + len(title_ids) + size
    self.longest = max(self.longest, length)
    summary.documents += 1
    summary.blocks += 1
    summary.tokens += size
    summary.sentences += len(sentences)

  def _cut(
    self, title_ids: Int[np.ndarray, " t"], body_ids: Int[np.ndarray, " b"]
  ) -> tuple[Int[np.ndarray, " kept_t"], Int[np.ndarray, " kept_b"]]:
    """Truncates both to the block length; a title keeps at most half of it."""
    if self._block_length is None:
      return title_ids, body_ids
    limit = self._block_length - NUM_SPECIAL_TOKENS
    if len(title_ids) + len(body_ids) <= limit:
      return title_ids, body_ids
    if len(title_ids) > limit // 2:
      self.summary.cut_titles += 1
      title_ids = title_ids[: limit // 2]
    limit -= len(title_ids)
    if len(body_ids) > limit:
      self.summary.skipped["ends of blocks longer than the block length"] += 1
    return title_ids, body_ids[:limit]
