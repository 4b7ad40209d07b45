"""Blocks made of documents and written to shards."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.building import splitting
from realm_jax.corpus.building.block_identity import block_id, content_hash
from realm_jax.corpus.building.documents import Document
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.shards.format import NUM_SPECIAL_TOKENS
from realm_jax.corpus.shards.writer import ShardSeries
from realm_jax.text.salient_spans import Tagger
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.wordpieces import WordpieceVocabulary

# Documents tokenized in one call. A call costs 20 ms, and its result stays in
# memory until its documents are written.
_DOCUMENTS_PER_CHUNK = 512
_CHARACTERS_PER_CHUNK = 4 << 20


class SalientSpans(NamedTuple):
  """Token ranges, each inside one sentence, and their kinds."""

  token_ranges: Int[np.ndarray, "p 2"]
  kinds: Sequence[str]

  @classmethod
  def of(
    cls,
    document: Document,
    token_bytes: Int[np.ndarray, "t 2"],
    sentences: Int[np.ndarray, "s 2"],
    *,
    tagger: Tagger | None,
    summary: BuildSummary,
  ) -> "SalientSpans":
    """Tags a document, whose sentences are token ranges, and counts."""
    found = sorted(tagger(document.text, document.title)) if tagger else []
    summary.salient_spans.update(kind for _, _, kind in found)
    ranges = np.array([span[:2] for span in found], np.int64).reshape(-1, 2)
    token_ranges, kept = splitting.token_spans(ranges, token_bytes, sentences)
    summary.unaligned_spans += len(found) - len(kept)
    return cls(token_ranges, [found[i][2] for i in kept.tolist()])

  def between(self, start: int, limit: int) -> "SalientSpans":
    """Returns those in a range of tokens that begins and ends sentences."""
    first, last = np.searchsorted(self.token_ranges[:, 0], [start, limit])
    return SalientSpans(
      self.token_ranges[first:last] - start, self.kinds[first:last]
    )


class TokenizedDocument(NamedTuple):
  """A document with its wordpieces, and the bytes of those of its text."""

  document: Document
  title_ids: Int[np.ndarray, " t"]
  token_ids: Int[np.ndarray, " b"]
  token_bytes: Int[np.ndarray, "b 2"]


def tokenized(
  documents: Iterable[Document], vocabulary: WordpieceVocabulary
) -> Iterator[TokenizedDocument]:
  """Tokenizes documents, many of them in one call."""
  for chunk in _chunks(documents):
    texts = [text for doc in chunk for text in (doc.title, doc.text)]
    tokens = vocabulary.tokenize_with_offsets(texts)
    bounds = tokens.row_offsets.tolist()
    for index, document in enumerate(chunk):
      title, text, limit = bounds[2 * index : 2 * index + 3]
      yield TokenizedDocument(
        document,
        tokens.token_ids[title:text],
        tokens.token_ids[text:limit],
        tokens.byte_ranges[text:limit],
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockBuilder:
  """Splits documents into blocks and writes these to shards.

  `corpus_name` is part of the blocks' ids, and `block_length` is the largest
  number of wordpieces in a block. Without a `tagger`, no salient spans are
  found. What is done is counted in `summary`.
  """

  vocabulary: WordpieceVocabulary
  shards: ShardSeries
  corpus_name: str
  block_length: int
  tagger: Tagger | None
  summary: BuildSummary

  def add_all(self, documents: Iterable[Document]) -> None:
    """Adds documents, many of which are tokenized in one call."""
    for document in tokenized(documents, self.vocabulary):
      self._add(document)

  def _add(self, tokens: TokenizedDocument) -> None:
    document, title_ids, token_ids, token_bytes = tokens
    summary = self.summary
    if not len(token_ids):
      summary.skipped["no words in the text"] += 1
      return
    # A title takes at most half of a block, so that a body always fits.
    capacity = self.block_length - NUM_SPECIAL_TOKENS
    summary.cut_titles += len(title_ids) > capacity // 2
    title_ids = title_ids[: capacity // 2]
    capacity -= len(title_ids)
    text = document.text.encode()
    sentences, num_cut = splitting.cut_overlong_sentences(
      splitting.align_sentences(sentence_ranges(document.text), token_bytes),
      token_bytes,
      text=text,
      capacity=capacity,
      is_continuation=self.vocabulary.is_continuation[token_ids],
    )
    ranges = sentences.token_ranges
    spans = SalientSpans.of(
      document, token_bytes, ranges, tagger=self.tagger, summary=summary
    )
    sizes = np.diff(ranges, axis=1)[:, 0]
    packed = splitting.pack_sentences(sizes, capacity=capacity)
    shard = self.shards.shard
    shard.add_document(
      document_id=document.id,
      title=document.title,
      url=document.url,
      num_blocks=len(packed) - 1,
    )
    for ordinal, (first, last) in enumerate(itertools.pairwise(packed)):
      start, limit = int(ranges[first, 0]), int(ranges[last - 1, 1])
      byte_start = sentences.byte_ranges[first, 0]
      byte_limit = sentences.byte_ranges[last - 1, 1]
      salient = spans.between(start, limit)
      body = text[byte_start:byte_limit]
      shard.add_block(
        block_id=block_id(self.corpus_name, document.id, ordinal),
        content_hash=content_hash(document.title, body),
        title_length=len(title_ids),
        token_ids=np.concatenate([title_ids, token_ids[start:limit]]),
        byte_ranges=token_bytes[start:limit] - byte_start,
        sentences=ranges[first:last] - start,
        salient_spans=salient.token_ranges,
        salient_span_kinds=salient.kinds,
        body=body,
      )
    summary.documents += 1
    summary.blocks += len(packed) - 1
    summary.tokens += len(token_ids)
    summary.sentences += len(ranges)
    summary.cut_sentences += num_cut


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
  """Yields batches for the tokenizer, bounded in documents and characters."""
  chunk: list[Document] = []
  characters = 0
  for document in documents:
    chunk.append(document)
    characters += len(document.text)
    if (
      len(chunk) >= _DOCUMENTS_PER_CHUNK or characters >= _CHARACTERS_PER_CHUNK
    ):
      yield chunk
      chunk, characters = [], 0
  if chunk:
    yield chunk
