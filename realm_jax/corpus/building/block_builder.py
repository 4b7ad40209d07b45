"""Blocks made of documents and written to shards."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.building.documents import Document
from realm_jax.corpus.building.seen_ids import hash63
from realm_jax.corpus.building.splitting import (
  align_sentences,
  cut_overlong_sentences,
  pack_sentences,
)
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


def block_id(document_id: str, ordinal: int) -> int:
  """Returns the stable id of a document's block: 63 bits, never negative."""
  return hash63(f"{document_id}\0{ordinal}")


def token_spans(
  spans: Int[np.ndarray, "p 2"],
  token_starts: Int[np.ndarray, " t"],
  token_limits: Int[np.ndarray, " t"],
  *,
  sentence_limits: Int[np.ndarray, " s"],
) -> Int[np.ndarray, "q 2"]:
  """Converts byte ranges to token ranges that are inside one sentence.

  A span that begins or ends inside a token, or crosses the end of a sentence,
  is left out.

  Args:
    spans: Byte ranges, in order.
    token_starts: First byte of each token.
    token_limits: Byte after each token.
    sentence_limits: Token after each sentence.
  """
  first = np.searchsorted(token_starts, spans[:, 0])
  limit = np.searchsorted(token_limits, spans[:, 1], side="right")
  inside = first < limit
  first, limit = first[inside], limit[inside]
  begins = token_starts[first] == spans[inside, 0]
  ends = token_limits[limit - 1] == spans[inside, 1]
  one_sentence = np.searchsorted(
    sentence_limits, first, side="right"
  ) == np.searchsorted(sentence_limits, limit, side="left")
  return np.stack([first, limit], axis=1)[begins & ends & one_sentence]


class BlockBuilder:
  """Splits documents into blocks and writes these to shards.

  Args:
    vocabulary: Vocabulary of the corpus.
    shards: Shards that the blocks are written to.
    block_length: Largest number of wordpieces in a block.
    tagger: Function that finds salient spans; None finds none.
    summary: Counts, to which this adds.
  """

  def __init__(
    self,
    *,
    vocabulary: WordpieceVocabulary,
    shards: ShardSeries,
    block_length: int,
    tagger: Tagger | None,
    summary: BuildSummary,
  ):
    self._vocabulary = vocabulary
    self._shards = shards
    self._capacity = block_length - NUM_SPECIAL_TOKENS
    self._tagger = tagger
    self._summary = summary

  def add_all(self, documents: Iterable[Document]) -> None:
    """Adds documents, many of which are tokenized in one call."""
    for chunk in _chunks(documents):
      self._add_chunk(chunk)

  def _add_chunk(self, chunk: Sequence[Document]) -> None:
    texts = [text for doc in chunk for text in (doc.title, doc.text)]
    tokens = self._vocabulary.tokenize_with_offsets(texts)
    bounds = tokens.row_offsets.tolist()
    for index, document in enumerate(chunk):
      title_start, text_start, text_limit = bounds[2 * index : 2 * index + 3]
      text_tokens = slice(text_start, text_limit)
      self._add_document(
        document,
        title_ids=tokens.token_ids[title_start:text_start],
        token_ids=tokens.token_ids[text_tokens],
        starts=tokens.starts[text_tokens],
        limits=tokens.limits[text_tokens],
      )

  def _cut_title(
    self, title_ids: Int[np.ndarray, " t"]
  ) -> Int[np.ndarray, " cut"]:
    """Cuts a title to half a block, so that a body always fits."""
    longest = self._capacity // 2
    self._summary.cut_titles += len(title_ids) > longest
    return title_ids[:longest]

  def _salient_spans(self, document: Document) -> Int[np.ndarray, "p 2"]:
    if not self._tagger:
      return np.zeros((0, 2), np.int64)
    spans = sorted(self._tagger(document.text, document.title))
    self._summary.salient_spans.update(kind for _, _, kind in spans)
    ranges = [(start, limit) for start, limit, _ in spans]
    return np.array(ranges, np.int64).reshape(-1, 2)

  def _add_document(
    self,
    document: Document,
    *,
    title_ids: Int[np.ndarray, " t"],
    token_ids: Int[np.ndarray, " b"],
    starts: Int[np.ndarray, " b"],
    limits: Int[np.ndarray, " b"],
  ) -> None:
    summary = self._summary
    if not len(token_ids):
      summary.skipped["no words in the text"] += 1
      return
    title_ids = self._cut_title(title_ids)
    capacity = self._capacity - len(title_ids)
    text = document.text.encode()
    sentences, num_cut = cut_overlong_sentences(
      align_sentences(sentence_ranges(document.text), starts, limits),
      text=text,
      capacity=capacity,
      is_continuation=self._vocabulary.is_continuation[token_ids],
      token_starts=starts,
      token_limits=limits,
    )
    ranges = sentences.token_ranges
    tagged = self._salient_spans(document)
    spans = token_spans(tagged, starts, limits, sentence_limits=ranges[:, 1])
    packed = pack_sentences(np.diff(ranges, axis=1)[:, 0], capacity=capacity)
    shard = self._shards.shard
    shard.add_document(
      document_id=document.id,
      title=document.title,
      url=document.url,
      num_blocks=len(packed) - 1,
    )
    for ordinal, (first, last) in enumerate(itertools.pairwise(packed)):
      token_start, token_limit = ranges[first, 0], ranges[last - 1, 1]
      byte_start = sentences.byte_ranges[first, 0]
      byte_limit = sentences.byte_ranges[last - 1, 1]
      body_tokens = slice(token_start, token_limit)
      byte_ranges = np.stack([starts[body_tokens], limits[body_tokens]], axis=1)
      in_block = slice(
        *np.searchsorted(spans[:, 0], [token_start, token_limit])
      )
      shard.add_block(
        block_id=block_id(document.id, ordinal),
        title_length=len(title_ids),
        token_ids=np.concatenate([title_ids, token_ids[body_tokens]]),
        byte_ranges=byte_ranges - byte_start,
        sentences=ranges[first:last] - token_start,
        salient_spans=spans[in_block] - token_start,
        body=text[byte_start:byte_limit],
      )
    summary.documents += 1
    summary.blocks += len(packed) - 1
    summary.tokens += len(token_ids)
    summary.sentences += len(ranges)
    summary.cut_sentences += num_cut
    summary.unaligned_spans += len(tagged) - len(spans)


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
