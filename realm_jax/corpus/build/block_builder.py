"""From documents to the blocks of a shard."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.build.documents import Document
from realm_jax.corpus.build.known_ids import hash63
from realm_jax.corpus.build.splitting import (
  NUM_SPECIAL_TOKENS,
  align_sentences,
  cut_overlong_sentences,
  pack_sentences,
)
from realm_jax.corpus.build.summary import BuildSummary
from realm_jax.corpus.shards.writer import ShardSeries
from realm_jax.text.salient_spans import Tagger
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.wordpieces import WordpieceVocabulary


def block_id(document_id: str, ordinal: int) -> int:
  """The stable id of a document's block: 63 bits, never negative."""
  return hash63(f"{document_id}\0{ordinal}")


def token_spans(
  spans: Int[np.ndarray, "p 2"],
  token_starts: Int[np.ndarray, " t"],
  token_limits: Int[np.ndarray, " t"],
  *,
  sentence_limits: Int[np.ndarray, " s"],
) -> Int[np.ndarray, "q 2"]:
  """The byte ranges `spans` as token ranges that lie in one sentence.

  A span that begins or ends inside a token, or crosses the end of a sentence,
  is left out.

  Args:
    spans: byte ranges, in order.
    token_starts: first byte of each token.
    token_limits: the byte after each token.
    sentence_limits: the token after each sentence.
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
  """Cuts documents into blocks and hands them to the writer of shards."""

  def __init__(
    self,
    *,
    vocabulary: WordpieceVocabulary,
    writer: ShardSeries,
    block_length: int,
    tagger: Tagger | None,
    summary: BuildSummary,
  ):
    """Builds with what is given; counts into `summary`."""
    self._vocabulary = vocabulary
    self._writer = writer
    self._room = block_length - NUM_SPECIAL_TOKENS
    self._tagger = tagger
    self._summary = summary

  def add(self, chunk: Sequence[Document]) -> None:
    """Adds documents, tokenized in one call."""
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
  ) -> Int[np.ndarray, " t"]:
    """At most half a block, so that a body always has room."""
    longest = self._room // 2
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
    capacity = self._room - len(title_ids)
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
    shard = self._writer.shard
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
