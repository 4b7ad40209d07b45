"""Makes blocks of many documents at once.

Arrays have the tokens, sentences and spans of all documents end to end, with
consecutive byte positions, so that no NumPy call is made for a single document.
Only finding sentences and salient spans, and hashing blocks, is done one by
one.
"""

import dataclasses
import hashlib
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

from realm_jax.corpus import splitting
from realm_jax.corpus.documents import Document, block_id
from realm_jax.corpus.linker import Linker
from realm_jax.corpus.manifest import ShardRecord
from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS, ragged_indices
from realm_jax.corpus.sources import Piece
from realm_jax.corpus.splitting import Sentences
from realm_jax.corpus.summary import BuildSummary
from realm_jax.corpus.views import Vocabularies, write_views
from realm_jax.corpus.writing import Blocks, write_shard
from realm_jax.storage.local_disk import ScratchDirectory
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.text.languages import ENGLISH, script
from realm_jax.text.salient_spans import Tagger, tag_many
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.vocabulary import BertVocabulary

# Number of documents in one call of the tokenizer, and of characters in their
# texts. A call costs a tenth of a millisecond, and its results stay in memory
# until they are written.
DOCUMENTS_PER_CHUNK = 2048
_CHARACTERS_PER_CHUNK = 4 << 20


def content_hash(title: str, body: bytes) -> int:
  """Returns the first 64 bits of a SHA-1 of title and body, signed.

  Released REALM hashes the same text, to recognize a sentence's source block.
  """
  digest = hashlib.sha1(b"%b <sep> %b" % (title.encode(), body)).digest()
  return int.from_bytes(digest[:8], "big", signed=True)


class _Texts(NamedTuple):
  """Tokens of documents that have words, end to end.

  `text` joins the texts, with a byte between any two, and text i begins at
  `byte_starts[i]`; `token_bytes` are positions in it. Document i has the title
  `title_ids[title_starts[i] : title_starts[i + 1]]`, truncated to half a block,
  and likewise for tokens. `capacities` are the numbers of tokens left for a
  body.
  """

  documents: Sequence[Document]
  text: bytes
  byte_starts: Int[np.ndarray, " d+1"]
  title_ids: Int[np.ndarray, " t"]
  title_starts: Int[np.ndarray, " d+1"]
  capacities: Int[np.ndarray, " d"]
  token_ids: Int[np.ndarray, " b"]
  token_bytes: Int[np.ndarray, "b 2"]
  token_starts: Int[np.ndarray, " d+1"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockBuilder:
  """Splits documents into blocks.

  Args:
    corpus_name: Name of the corpus, part of the blocks' ids.
    block_length: Largest number of wordpieces in a block.
    language: Language of documents that do not state one.
    tagger: Tagger of salient spans; None keeps only the spans of the input.
    linker: Finds links; None makes none.
  """

  vocabulary: BertVocabulary
  corpus_name: str
  block_length: int
  tagger: Tagger | None
  language: str = ENGLISH
  linker: Linker | None = None

  def blocks(
    self, documents: Iterable[Document], summary: BuildSummary
  ) -> Iterator[Blocks]:
    """Yields the blocks of many documents at a time, and counts them.

    Documents without words have no block.
    """
    for chunk in _chunks(documents):
      texts = self._tokenized(chunk, summary)
      if texts.documents:
        yield self._build(texts, summary)

  def _tokenized(
    self, documents: Sequence[Document], summary: BuildSummary
  ) -> _Texts:
    """Tokenizes documents in one call, and drops documents without words."""
    both = [text for doc in documents for text in (doc.title, doc.text)]
    tokens = self.vocabulary.tokenize_with_offsets(both)
    is_block = np.array([document.is_block for document in documents], bool)
    # A document that is a single block may be empty.
    has_blocks = is_block | (np.diff(tokens.row_offsets)[1::2] > 0)
    if num_wordless := int((~has_blocks).sum()):
      summary.skipped["no words in the text"] += num_wordless
    kept = list(itertools.compress(documents, has_blocks))
    starts = tokens.row_offsets[:-1].reshape(-1, 2)[has_blocks]
    lengths = np.diff(tokens.row_offsets).reshape(-1, 2)[has_blocks]
    # A title takes at most half of a block, so that a body always fits.
    most = self.block_length - NUM_SPECIAL_TOKENS
    title_lengths = np.minimum(lengths[:, 0], most // 2)
    summary.cut_titles += int((title_lengths < lengths[:, 0]).sum())
    capacities = most - title_lengths
    is_cut = is_block[has_blocks] & (lengths[:, 1] > capacities)
    if num_cut := int(is_cut.sum()):
      reason = "ends of blocks longer than the block length"
      summary.skipped[reason] += num_cut
    body_lengths = np.where(is_cut, capacities, lengths[:, 1])
    bodies = ragged_indices(starts[:, 1], body_lengths)
    titles = ragged_indices(starts[:, 0], title_lengths)
    encoded = [document.text.encode() for document in kept]
    # The byte between two texts keeps their tokens and sentences apart.
    byte_starts = _offsets([len(text) + 1 for text in encoded])
    shift = np.repeat(byte_starts[:-1], body_lengths)
    return _Texts(
      documents=kept,
      text=b"\n".join(encoded),
      byte_starts=byte_starts,
      title_ids=tokens.token_ids[titles],
      title_starts=_offsets(title_lengths),
      capacities=capacities,
      token_ids=tokens.token_ids[bodies],
      token_bytes=tokens.byte_ranges[bodies] + shift[:, np.newaxis],
      token_starts=_offsets(body_lengths),
    )

  def _build(self, texts: _Texts, summary: BuildSummary) -> Blocks:
    range_lists: list[Sequence[tuple[int, int]]] = []
    sizes = (np.diff(texts.byte_starts) - 1).tolist()
    for document, size in zip(texts.documents, sizes, strict=True):
      if document.sentences is not None:
        ranges = sorted(document.sentences)
      else:
        language = document.language or self.language
        ranges = sentence_ranges(document.text, language)
      range_lists.append(ranges or [(0, size)])
    # First sentence of each document, and the byte ranges of all sentences.
    sentence_starts = _offsets([*map(len, range_lists)])
    flat = np.array([*itertools.chain(*range_lists)], np.int64).reshape(-1, 2)
    shift = np.repeat(texts.byte_starts[:-1], np.diff(sentence_starts))
    aligned = splitting.align_sentences(
      flat + shift[:, np.newaxis],
      texts.token_bytes,
      sentence_starts=sentence_starts[:-1],
      token_starts=texts.token_starts[:-1],
    )
    num_aligned = np.diff(aligned.starts, append=len(aligned.token_ranges))
    sentences, num_pieces = splitting.cut_overlong_sentences(
      aligned,
      texts.token_bytes,
      text=texts.text,
      capacities=np.repeat(texts.capacities, num_aligned),
      is_continuation=self.vocabulary.is_continuation[texts.token_ids],
    )
    spans, kinds = self._spans(texts, sentences, summary)
    arrays = self._arrays(texts, sentences, spans, summary)
    summary.documents += len(texts.documents)
    summary.blocks += len(arrays["block_ids"])
    summary.tokens += len(texts.token_ids)
    unknown = texts.token_ids == self.vocabulary.unk_id
    summary.unknown_tokens += int(unknown.sum())
    summary.sentences += len(sentences.token_ranges)
    summary.uncut_sentences += len(num_pieces)
    summary.cut_sentences += int((num_pieces > 1).sum())
    summary.long_words += sum(doc.long_words for doc in texts.documents)
    for document in texts.documents:
      summary.languages[document.language or self.language] += 1
      if not document.language and (name := script(document.text)):
        summary.scripts[name] += 1
    return {**arrays, "salient_span_kinds": kinds}

  def _spans(
    self, texts: _Texts, sentences: Sentences, summary: BuildSummary
  ) -> tuple[Int[np.ndarray, "p 2"], np.ndarray]:
    """Returns the token ranges and kinds of salient spans in one sentence.

    The tagger finds them in documents whose input has none.
    """
    span_lists = [document.spans or () for document in texts.documents]
    untagged = [i for i, d in enumerate(texts.documents) if d.spans is None]
    if self.tagger is not None:
      documents = [texts.documents[i] for i in untagged]
      tagged = tag_many(
        self.tagger, [d.text for d in documents], [d.title for d in documents]
      )
      for i, spans in zip(untagged, tagged, strict=True):
        span_lists[i] = spans
    ordered = [span for spans in span_lists for span in sorted(spans)]
    kinds = [kind for *_, kind in ordered]
    byte_ranges = np.array([span[:2] for span in ordered], np.int64)
    shift = np.repeat(texts.byte_starts[:-1], [*map(len, span_lists)])
    ranges, kept = splitting.token_spans(
      byte_ranges.reshape(-1, 2) + shift[:, np.newaxis],
      texts.token_bytes,
      sentences.token_ranges,
    )
    summary.salient_spans.update(kinds)
    summary.unaligned_spans += len(kinds) - len(kept)
    kept_kinds = np.array(kinds, object)[kept]
    summary.spans_to_mask += int((kept_kinds != "number").sum())
    return ranges, kept_kinds

  def _arrays(
    self,
    texts: _Texts,
    sentences: Sentences,
    spans: Int[np.ndarray, "p 2"],
    summary: BuildSummary,
  ) -> dict[str, np.ndarray]:
    """Packs sentences into blocks, and returns all but the kinds of spans."""
    documents, ranges = texts.documents, sentences.token_ranges
    bounds = splitting.pack_sentences(
      np.diff(ranges, axis=1)[:, 0],
      capacities=texts.capacities,
      sentence_starts=sentences.starts,
    )
    firsts, lasts = bounds[:-1], bounds[1:] - 1
    starts = ranges[firsts, 0]
    token_bounds = np.append(starts, len(texts.token_ids))
    lengths = np.diff(token_bounds)
    document_starts = np.append(
      np.searchsorted(bounds, sentences.starts), len(firsts)
    )
    owners = np.repeat(np.arange(len(documents)), np.diff(document_starts))
    title_lengths = np.diff(texts.title_starts)[owners]
    titles_and_bodies = np.append(texts.title_ids, texts.token_ids)
    # Start and length of the title and the body of each block.
    title_starts = texts.title_starts[owners]
    parts = (
      np.stack([title_starts, len(texts.title_ids) + starts], axis=1),
      np.stack([title_lengths, lengths], axis=1),
    )
    byte_ranges = np.stack(
      [sentences.byte_ranges[firsts, 0], sentences.byte_ranges[lasts, 1]], 1
    )
    # A document that is a single block keeps the surrounding white space.
    for i in [i for i, d in enumerate(documents) if d.is_block]:
      limit = texts.byte_starts[i + 1] - 1
      byte_ranges[document_starts[i]] = texts.byte_starts[i], limit
    bodies = [texts.text[start:limit] for start, limit in byte_ranges.tolist()]
    ordinals = np.arange(len(firsts)) - document_starts[owners]
    owned = [documents[i] for i in owners.tolist()]
    span_offsets = np.searchsorted(spans[:, 0], token_bounds)
    links: dict[str, np.ndarray] = {}
    if self.linker is not None:
      links = self.linker.arrays(
        documents,
        texts.text,
        byte_ranges=byte_ranges,
        document_starts=document_starts,
        summary=summary,
      )
    token_dtype = "<u2" if self.vocabulary.size <= 1 << 16 else "<i4"

    def shifted(
      ranges: np.ndarray, by: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
      return ranges - np.repeat(by, counts)[:, np.newaxis]

    return {
      "block_ids": _array(
        block_id(self.corpus_name, document.id, ordinal)
        for document, ordinal in zip(owned, ordinals.tolist(), strict=True)
      ),
      "content_hashes": _array(
        content_hash(document.title, body)
        for document, body in zip(owned, bodies, strict=True)
      ),
      "title_lengths": title_lengths,
      "token_ids": titles_and_bodies.astype(token_dtype)[
        ragged_indices(*map(np.ravel, parts))
      ],
      "token_ids_offsets": _offsets(lengths + title_lengths),
      "byte_ranges": shifted(texts.token_bytes, byte_ranges[:, 0], lengths),
      "byte_ranges_offsets": token_bounds,
      "sentences": shifted(ranges, starts, np.diff(bounds)),
      "sentences_offsets": bounds,
      "salient_spans": shifted(spans, starts, np.diff(span_offsets)),
      "salient_spans_offsets": span_offsets,
      "document_starts": document_starts,
      "document_hashes": _array(document.hash for document in documents),
      **_ragged("bodies", bodies),
      **_ragged("titles", [d.title.encode() for d in documents]),
      **_ragged("document_ids", [d.id.encode() for d in documents]),
      **_ragged("urls", [d.url.encode() for d in documents]),
      **_ragged("fields", [d.fields.encode() for d in documents]),
      **links,
    }


# Record of a shard, or None if it has no block, and the counts of a
# `BuildSummary`, as JSON values.
Built: TypeAlias = tuple[ShardRecord | None, dict[str, Any]]


def build_piece(
  builder: BlockBuilder, views: Vocabularies, directory: str, piece: Piece
) -> Built:
  """Writes a shard to a directory, which may be on an object store."""
  summary, name = BuildSummary(), f"shard-{piece.number:05d}"
  blocks = builder.blocks(piece.documents, summary)
  if not is_remote(directory):
    # Left by an attempt that failed.
    local = Path(directory)
    shutil.rmtree(local / name, ignore_errors=True)
    record = write_shard(local / name, blocks)
    record = record and write_views(views, local, local, record)
    return record, vars(summary)
  with ScratchDirectory() as scratch:
    record = write_shard(scratch.path / name, blocks)
    record = record and write_views(views, scratch.path, scratch.path, record)
    upload_directory(scratch.path, directory)
  return record, vars(summary)


def _ragged(name: str, items: Sequence[bytes]) -> dict[str, np.ndarray]:
  """Returns concatenated byte strings and their offsets, by array name."""
  flat = np.frombuffer(b"".join(items), np.uint8)
  return {name: flat, f"{name}_offsets": _offsets([*map(len, items)])}


def _offsets(lengths: Sequence[int] | np.ndarray) -> Int[np.ndarray, " n"]:
  return np.append(0, np.cumsum(lengths, dtype=np.int64))


def _array(values: Iterable[int]) -> Int[np.ndarray, " n"]:
  return np.fromiter(values, np.int64)


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
  """Yields batches of documents, bounded in number and characters."""
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
