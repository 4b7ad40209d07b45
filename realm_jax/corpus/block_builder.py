"""Blocks made of documents, of many at once.

A document costs no call of NumPy of its own: its tokens, sentences and spans
stand end to end with those of the others, and bytes are numbered through. What
is done for each document in Python is to find its sentences and its salient
spans, and for each block to hash it.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus import splitting
from realm_jax.corpus.documents import Document, document_hash, hash63
from realm_jax.corpus.shard import (
  NUM_SPECIAL_TOKENS,
  Blocks,
  ragged,
  ragged_indices,
)
from realm_jax.corpus.splitting import Sentences
from realm_jax.text.salient_spans import FoundSpan, Tagger, tag_many
from realm_jax.text.sentences import sentence_characters, sentence_ranges
from realm_jax.text.wordpieces import WordpieceVocabulary

# What is counted of each document, besides its blocks.
COUNTS = ("tokens", "sentences", "cut_sentences", "cut_titles", "long_words")
# Documents of one call of the tokenizer, and characters of their texts. A call
# costs 20 ms, and what it gives stays in memory until it is written.
DOCUMENTS_PER_CHUNK = 2048
_CHARACTERS_PER_CHUNK = 4 << 20


def block_id(corpus_name: str, document_id: str, ordinal: int) -> int:
  """Returns the stable id of a document's block: 63 bits, never negative.

  The name of the corpus is part of it, so that documents of two corpora may
  have the same ids.
  """
  return hash63(f"{corpus_name}\0{document_id}\0{ordinal}")


def content_hash(title: str, body: bytes) -> int:
  """Returns the first 64 bits of a SHA-1 of title and body, signed.

  Two blocks with the same title and body have the same hash, in whichever
  corpus they are. Released REALM hashes the same text to find the blocks that
  a sentence was taken from.
  """
  digest = hashlib.sha1(b"%b <sep> %b" % (title.encode(), body)).digest()
  return int.from_bytes(digest[:8], "big", signed=True)


class BuiltBlocks(NamedTuple):
  """The blocks of some documents, and counts of each document.

  Attributes:
    documents: Indices of the documents that have blocks; others have no words.
    counts: Of each of them, the values of `COUNTS`.
    spans: Of each of them, the salient spans of each of `blocks.span_kinds`
      that were found.
    unaligned: Of each of them, spans that begin or end inside a token, or cross
      the end of a sentence.
    cut_ends: Of each of them, whether it is a block that was too long.
  """

  blocks: Blocks
  documents: Int[np.ndarray, " d"]
  counts: Int[np.ndarray, "d 5"]
  spans: Int[np.ndarray, "d k"]
  unaligned: Int[np.ndarray, " d"]
  cut_ends: Int[np.ndarray, " d"]


class _Texts(NamedTuple):
  """Tokens of documents that have words, end to end.

  `text` joins the texts, with a byte between any two, and text i begins at
  `byte_starts[i]`; `token_bytes` are positions in it. Document i has the title
  `title_ids[title_starts[i] : title_starts[i + 1]]`, and so on.
  """

  documents: Sequence[Document]
  text: bytes
  byte_starts: Int[np.ndarray, " d+1"]
  title_ids: Int[np.ndarray, " t"]
  title_starts: Int[np.ndarray, " d+1"]
  token_ids: Int[np.ndarray, " b"]
  token_bytes: Int[np.ndarray, "b 2"]
  token_starts: Int[np.ndarray, " d+1"]

  @property
  def title_lengths(self) -> Int[np.ndarray, " d"]:
    """Wordpieces of each title."""
    return np.diff(self.title_starts)


class _Spans(NamedTuple):
  """Salient spans that are whole tokens of one sentence, and who had which."""

  token_ranges: Int[np.ndarray, "p 2"]
  kinds: Int[np.ndarray, " p"]
  kind_names: Sequence[str]
  found: Int[np.ndarray, "d k"]
  unaligned: Int[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockBuilder:
  """Splits documents into blocks.

  `corpus_name` is part of the blocks' ids, and `block_length` is the largest
  number of wordpieces in a block. Without a `tagger`, only those documents have
  salient spans that came with them.
  """

  vocabulary: WordpieceVocabulary
  corpus_name: str
  block_length: int
  tagger: Tagger | None

  def build(self, documents: Sequence[Document]) -> BuiltBlocks:
    """Makes the blocks of documents, which are tokenized in one call."""
    texts, indices = self._tokenized(documents)
    # A title takes at most half of a block, so that a body always fits.
    capacity = self.block_length - NUM_SPECIAL_TOKENS
    title_lengths = np.minimum(texts.title_lengths, capacity // 2)
    capacities = capacity - title_lengths
    texts, is_cut = _without_ends(texts, capacities)
    byte_ranges, sentence_starts = _sentences(texts)
    aligned = splitting.align_sentences(
      byte_ranges,
      texts.token_bytes,
      sentence_starts=sentence_starts,
      token_starts=texts.token_starts[:-1],
    )
    sentences, num_pieces = splitting.cut_overlong_sentences(
      aligned,
      texts.token_bytes,
      text=texts.text,
      capacity=_of_items(capacities, aligned.starts, len(aligned.token_ranges)),
      is_continuation=self.vocabulary.is_continuation[texts.token_ids],
    )
    spans = self._spans(texts, sentences)
    blocks = self._blocks(texts, title_lengths, capacities, sentences, spans)
    counts = (
      np.diff(texts.token_starts),
      np.diff(sentences.starts, append=len(sentences.token_ranges)),
      _sums(num_pieces > 1, aligned.starts),
      title_lengths < texts.title_lengths,
      np.array([document.long_words for document in texts.documents], np.int64),
    )
    return BuiltBlocks(
      blocks,
      documents=indices,
      counts=np.stack(counts, 1).astype(np.int64),
      spans=spans.found,
      unaligned=spans.unaligned,
      cut_ends=is_cut.astype(np.int64),
    )

  def _tokenized(
    self, documents: Sequence[Document]
  ) -> tuple[_Texts, Int[np.ndarray, " d"]]:
    """Tokenizes documents; returns those with words, and their indices."""
    both = [text for doc in documents for text in (doc.title, doc.text)]
    tokens = self.vocabulary.tokenize_with_offsets(both)
    lengths = np.diff(tokens.row_offsets).reshape(-1, 2)
    # A block that stands as it is may be empty.
    is_block = np.array([document.is_block for document in documents], bool)
    indices = np.flatnonzero(is_block | (lengths[:, 1] > 0))
    # Masks, since indices would take eight bytes a token.
    has_blocks = np.zeros(len(documents), bool)
    has_blocks[indices] = True
    rows = np.stack([has_blocks, np.zeros_like(has_blocks)], 1)
    titles = np.repeat(rows.reshape(-1), lengths.reshape(-1))
    bodies = np.repeat(rows[:, ::-1].reshape(-1), lengths.reshape(-1))
    lengths = lengths[indices]
    kept = [documents[i] for i in indices.tolist()]
    encoded = [document.text.encode() for document in kept]
    # The byte between two texts keeps their tokens and sentences apart.
    sizes = np.array([len(text) + 1 for text in encoded], np.int64)
    byte_starts = np.append(0, np.cumsum(sizes))
    shift = np.repeat(byte_starts[:-1], lengths[:, 1])
    return _Texts(
      documents=kept,
      text=b"\n".join(encoded),
      byte_starts=byte_starts,
      title_ids=tokens.token_ids[titles],
      title_starts=np.append(0, np.cumsum(lengths[:, 0])),
      token_ids=tokens.token_ids[bodies],
      token_bytes=tokens.byte_ranges[bodies] + shift[:, np.newaxis],
      token_starts=np.append(0, np.cumsum(lengths[:, 1])),
    ), indices

  def _spans(self, texts: _Texts, sentences: Sentences) -> _Spans:
    """Finds the salient spans of documents that did not come with them."""
    found: list[Sequence[FoundSpan]] = [d.spans or () for d in texts.documents]
    untagged = [i for i, d in enumerate(texts.documents) if d.spans is None]
    if self.tagger is not None:
      documents = [texts.documents[i] for i in untagged]
      tagged = tag_many(
        self.tagger, [d.text for d in documents], [d.title for d in documents]
      )
      for i, spans in zip(untagged, tagged, strict=True):
        found[i] = spans
    numbers: dict[str, int] = {}
    flat = [
      (start, limit, numbers.setdefault(kind, len(numbers)))
      for spans in found
      for start, limit, kind in sorted(spans)
    ]
    table = np.array(flat, np.int64).reshape(-1, 3)
    owners = np.repeat(np.arange(len(found)), [len(spans) for spans in found])
    ranges, kept = splitting.token_spans(
      table[:, :2] + texts.byte_starts[owners][:, np.newaxis],
      texts.token_bytes,
      sentences.token_ranges,
    )
    per_kind = np.zeros((len(found), len(numbers)), np.int64)
    np.add.at(per_kind, (owners, table[:, 2]), 1)
    num_kept = np.bincount(owners[kept], minlength=len(found))
    return _Spans(
      token_ranges=ranges,
      kinds=table[kept, 2],
      kind_names=tuple(numbers),
      found=per_kind,
      unaligned=per_kind.sum(1) - num_kept,
    )

  def _blocks(
    self,
    texts: _Texts,
    title_lengths: Int[np.ndarray, " d"],
    capacities: Int[np.ndarray, " d"],
    sentences: Sentences,
    spans: _Spans,
  ) -> Blocks:
    documents, ranges = texts.documents, sentences.token_ranges
    bounds = splitting.pack_sentences(
      np.diff(ranges, axis=1)[:, 0],
      capacity=capacities,
      sentence_starts=sentences.starts,
    )
    firsts, lasts = bounds[:-1], bounds[1:] - 1
    starts = ranges[firsts, 0]
    token_bounds = np.append(starts, len(texts.token_ids))
    lengths = np.diff(token_bounds)
    document_starts = np.searchsorted(bounds, sentences.starts)
    owners = _of_items(np.arange(len(documents)), document_starts, len(firsts))
    byte_ranges = np.stack(
      [sentences.byte_ranges[firsts, 0], sentences.byte_ranges[lasts, 1]], 1
    )
    # A block as it stands keeps the white space around it.
    for i in [i for i, d in enumerate(documents) if d.is_block]:
      limit = texts.byte_starts[i + 1] - 1
      byte_ranges[document_starts[i]] = texts.byte_starts[i], limit
    bodies = [texts.text[start:limit] for start, limit in byte_ranges.tolist()]
    titles = [document.title for document in documents]
    names = [document.id for document in documents]
    ordinals = np.arange(len(firsts)) - document_starts[owners]
    where = list(zip(owners.tolist(), ordinals.tolist(), strict=True))
    span_starts = spans.token_ranges[:, 0]
    span_offsets = np.searchsorted(span_starts, token_bounds)
    arrays = {
      "block_ids": _array(
        block_id(self.corpus_name, names[i], ordinal) for i, ordinal in where
      ),
      "content_hashes": _array(
        content_hash(titles[i], body)
        for (i, _), body in zip(where, bodies, strict=True)
      ),
      "title_lengths": title_lengths[owners],
      "token_ids": _titles_and_bodies(texts, title_lengths, owners, starts),
      "token_ids_offsets": np.append(
        0, np.cumsum(lengths + title_lengths[owners])
      ),
      "byte_ranges": texts.token_bytes
      - np.repeat(byte_ranges[:, 0], lengths)[:, np.newaxis],
      "byte_ranges_offsets": token_bounds,
      "sentences": ranges - np.repeat(starts, np.diff(bounds))[:, np.newaxis],
      "sentences_offsets": bounds,
      "salient_spans": spans.token_ranges
      - np.repeat(starts, np.diff(span_offsets))[:, np.newaxis],
      "salient_spans_offsets": span_offsets,
      "salient_span_kinds": spans.kinds,
      "document_starts": np.append(document_starts, len(firsts)),
      "document_hashes": _array(map(document_hash, documents)),
      **ragged("bodies", bodies),
      **ragged("titles", [title.encode() for title in titles]),
      **ragged("document_ids", [name.encode() for name in names]),
      **ragged("urls", [document.url.encode() for document in documents]),
    }
    return Blocks(arrays, spans.kind_names)


def _titles_and_bodies(
  texts: _Texts,
  title_lengths: Int[np.ndarray, " d"],
  owners: Int[np.ndarray, " n"],
  starts: Int[np.ndarray, " n"],
) -> Int[np.ndarray, " t"]:
  """Returns title and body tokens of each block, end to end."""
  sizes = np.diff(starts, append=len(texts.token_ids))
  of_titles = title_lengths[owners]
  is_title = np.repeat(
    np.tile([True, False], len(starts)),
    np.stack([of_titles, sizes], 1).reshape(-1),
  )
  tokens = np.empty(len(is_title), np.int32)
  titles = ragged_indices(texts.title_starts[owners], of_titles)
  tokens[is_title] = texts.title_ids[titles]
  tokens[~is_title] = texts.token_ids
  return tokens


def _without_ends(
  texts: _Texts, capacities: Int[np.ndarray, " d"]
) -> tuple[_Texts, np.ndarray]:
  """Cuts the tokens of blocks that stand as they are and are too long."""
  lengths = np.diff(texts.token_starts)
  is_block = np.array([d.is_block for d in texts.documents], bool)
  is_cut = is_block & (lengths > capacities)
  if not is_cut.any():
    return texts, is_cut
  lengths = np.where(is_cut, capacities, lengths)
  kept = ragged_indices(texts.token_starts[:-1], lengths)
  return texts._replace(
    token_ids=texts.token_ids[kept],
    token_bytes=texts.token_bytes[kept],
    token_starts=np.append(0, np.cumsum(lengths)),
  ), is_cut


def _sentences(
  texts: _Texts,
) -> tuple[Int[np.ndarray, "s 2"], Int[np.ndarray, " d"]]:
  """Returns the bytes of all sentences, and each document's first sentence."""
  found: list[Sequence[tuple[int, int]]] = []
  for document, size in zip(
    texts.documents, (np.diff(texts.byte_starts) - 1).tolist(), strict=True
  ):
    if document.sentences is not None:
      ranges = sorted(document.sentences)
    elif document.text.isascii():
      ranges = sentence_characters(document.text)
    else:
      ranges = sentence_ranges(document.text).tolist()
    found.append(ranges or [(0, size)])
  sizes = np.array([len(ranges) for ranges in found], np.int64)
  flat = np.array([*itertools.chain(*found)], np.int64).reshape(-1, 2)
  flat += np.repeat(texts.byte_starts[:-1], sizes)[:, np.newaxis]
  return flat, np.cumsum(sizes) - sizes


def _of_items(
  values: Int[np.ndarray, " d"], starts: Int[np.ndarray, " d"], size: int
) -> Int[np.ndarray, " n"]:
  """Repeats each document's value for its items, `size` in all."""
  return np.repeat(values, np.diff(starts, append=size))


def _sums(
  values: np.ndarray, starts: Int[np.ndarray, " d"]
) -> Int[np.ndarray, " d"]:
  """Returns the sums of the values of each document."""
  totals = np.append(0, np.cumsum(values))
  return np.diff(totals[np.append(starts, len(values))])


def _array(values: Iterable[int]) -> Int[np.ndarray, " n"]:
  return np.fromiter(values, np.int64)


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
  """Yields batches for `build`, bounded in documents and characters."""
  chunk: list[Document] = []
  characters = 0
  for document in documents:
    chunk.append(document)
    characters += len(document.text)
    if len(chunk) >= DOCUMENTS_PER_CHUNK or characters >= _CHARACTERS_PER_CHUNK:
      yield chunk
      chunk, characters = [], 0
  if chunk:
    yield chunk
