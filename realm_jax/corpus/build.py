"""From text to a corpus directory: one pass over the text, in flat memory."""

import functools
import html
import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int

from realm_jax.corpus import blocks as block_cutting
from realm_jax.corpus.directory_writer import (
  CorpusDirectoryWriter,
  check_target,
)
from realm_jax.corpus.documents import Document, DocumentReader
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.known_ids import KnownIds, hash63
from realm_jax.corpus.progress import Progress
from realm_jax.corpus.summary import BuildSummary
from realm_jax.text.salient_spans import Tagger
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.wordpieces import WordpieceVocabulary, train_vocabulary

# Titles of pages that are lists of pages, which released REALM left out.
DROPPED_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

_TRAIN_PREFIX = "train:"
# Documents tokenized in one call. A call costs 20 ms, and what it returns stays
# in memory until its documents are written.
_DOCUMENTS_PER_CHUNK = 512
_CHARACTERS_PER_CHUNK = 4 << 20


def block_id(document_id: str, ordinal: int) -> int:
  """The stable id of a document's block: 63 bits, never negative."""
  return hash63(f"{document_id}\0{ordinal}")


def read_documents(
  patterns: Sequence[str],
  *,
  skip_bad_lines: bool = False,
  unescape_html: bool = True,
) -> Iterator[Document]:
  """The documents of JSON Lines files, as the corpus will have them."""
  for document in DocumentReader(patterns, skip_bad_lines=skip_bad_lines):
    yield unescaped(document) if unescape_html else document


def unescaped(document: Document) -> Document:
  """The document with `&amp;` and its like as the characters they mean."""
  return document._replace(
    title=html.unescape(document.title), text=html.unescape(document.text)
  )


def _vocabulary(vocab: str, texts: Iterable[str]) -> WordpieceVocabulary:
  """The vocabulary of a file, or one trained on `texts`."""
  if not vocab.startswith(_TRAIN_PREFIX):
    return WordpieceVocabulary(vocab)
  size = vocab.removeprefix(_TRAIN_PREFIX)
  if not size.isdecimal():
    raise CorpusError(
      f"--vocab={vocab}: {size!r} is not a number of pieces; write for "
      "example --vocab=train:8192"
    )
  logging.info("Training a vocabulary of at most %s pieces", size)
  pieces = train_vocabulary(texts, int(size))
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "vocab.txt")
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8", newline="\n")
    return WordpieceVocabulary(path)


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
    spans: byte ranges.
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


class _Builder:
  """Cuts documents into blocks and hands them to the writer."""

  def __init__(
    self,
    *,
    vocabulary: WordpieceVocabulary,
    writer: CorpusDirectoryWriter,
    block_length: int,
    tagger: Tagger | None,
    summary: BuildSummary,
  ):
    self._vocabulary = vocabulary
    self._writer = writer
    self._room = block_length - block_cutting.NUM_SPECIAL_TOKENS
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
    spans = self._tagger(document.text, document.title)
    self._summary.salient_spans.update(span.kind for span in spans)
    ranges = [(span.start, span.limit) for span in spans]
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
    sentences, num_cut = block_cutting.cut_overlong_sentences(
      block_cutting.align_sentences(
        sentence_ranges(document.text), starts, limits
      ),
      text=text,
      capacity=capacity,
      is_continuation=self._vocabulary.is_continuation[token_ids],
      token_starts=starts,
    )
    ranges = sentences.token_ranges
    tagged = self._salient_spans(document)
    spans = token_spans(tagged, starts, limits, sentence_limits=ranges[:, 1])
    packed = block_cutting.pack_sentences(
      np.diff(ranges, axis=1)[:, 0], capacity=capacity
    )
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


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
  """Batches for the tokenizer, bounded in documents and in characters."""
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


def _kept_documents(
  reader: DocumentReader,
  *,
  drop_titles: Sequence[str],
  unescape_html: bool,
  summary: BuildSummary,
) -> Iterator[Document]:
  """Documents with distinct ids and titles that are not dropped."""
  dropped = re.compile("|".join(map(re.escape, drop_titles))) if drop_titles else None
  known = KnownIds()
  for document in reader:
    if unescape_html:
      document = unescaped(document)
    earlier = known.add(document.id, reader.position)
    if earlier is not None:
      reader.refuse(
        InputError(
          f"{document.place} has the same id {document.id!r} (title "
          f"{document.title!r}) as {reader.place_of(earlier)}; give each "
          "document an id of its own, or drop one (a document without an id "
          "gets one from its contents)"
        ),
        reason="duplicate ids",
      )
      continue
    match = dropped.search(document.title) if dropped else None
    if match:
      summary.skipped[f"title with {match[0]!r}"] += 1
      continue
    yield document


def build_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str,
  block_length: int = 288,
  tagger: Tagger | None = None,
  drop_titles: Sequence[str] = DROPPED_TITLES,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  overwrite: bool = False,
  blocks_per_shard: int = 200_000,
  version: int = 1,
) -> BuildSummary:
  """Builds a corpus directory from JSON Lines.

  Args:
    inputs: files or glob patterns of `{"title": …, "text": …}` lines.
    output_dir: the corpus directory; appears complete or not at all.
    vocab: a vocabulary file, or `train:SIZE` to learn one from the input.
    block_length: the most tokens of `[CLS] title [SEP] body [SEP]`.
    tagger: finds salient spans; without one there are none.
    drop_titles: documents whose title contains one of these are left out.
    unescape_html: read `&amp;` as `&` in titles and texts.
    skip_bad_lines: count lines that are malformed or repeat an id, and go on.
    overwrite: replace the corpus that is at `output_dir`.
    blocks_per_shard: a shard ends with the document that reaches this.
    version: the corpus version to write.

  Raises:
    InputError: the input cannot be read, or holds nothing.
    CorpusError: `output_dir` cannot be written, or an argument is wrong.
    VocabularyError: the vocabulary cannot be used.
  """
  if block_length < 8:
    raise CorpusError(
      f"block_length={block_length} has no room for a title and a body; "
      "released REALM has 288"
    )
  if blocks_per_shard < 1:
    raise CorpusError(f"blocks_per_shard={blocks_per_shard}; wanted 1 or more")
  check_target(epath.Path(output_dir), overwrite=overwrite)
  new_reader = functools.partial(
    DocumentReader, inputs, skip_bad_lines=skip_bad_lines
  )
  summary = BuildSummary()
  reader = new_reader()
  kept = functools.partial(
    _kept_documents, drop_titles=drop_titles, unescape_html=unescape_html
  )
  vocabulary = _vocabulary(
    vocab,
    (
      text
      for document in kept(new_reader(), summary=BuildSummary())
      for text in (document.title, document.text)
    ),
  )
  progress = Progress("build_corpus", reader.total_bytes)
  with CorpusDirectoryWriter(
    output_dir,
    pieces=vocabulary.pieces,
    blocks_per_shard=blocks_per_shard,
    overwrite=overwrite,
  ) as writer:
    builder = _Builder(
      vocabulary=vocabulary,
      writer=writer,
      block_length=block_length,
      tagger=tagger,
      summary=summary,
    )
    for chunk in _chunks(kept(reader, summary=summary)):
      builder.add(chunk)
      progress.update(
        documents=summary.documents, bytes_read=reader.bytes_read
      )
    progress.close()
    summary.skipped.update(reader.bad_lines)
    summary.first_errors = reader.first_errors
    if not summary.blocks:
      raise InputError(
        f"no document in {', '.join(inputs)} gave a block (skipped: "
        f"{dict(summary.skipped) or 'nothing, there are no lines'}); a corpus "
        "needs at least one"
      )
    writer.finish(
      version=version, block_length=block_length, summary=summary.to_json()
    )
  return summary
