"""Builds a corpus directory from text, in one pass and constant memory."""

from collections.abc import Sequence

from absl import logging
from etils import epath

from realm_jax.corpus.building.block_builder import BlockBuilder
from realm_jax.corpus.building.directory_writer import (
  CorpusDirectoryWriter,
  check_target,
)
from realm_jax.corpus.building.document_source import DocumentSource
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.shards.format import MIN_BLOCK_LENGTH
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  train_vocabulary,
  vocabulary_of,
)

_TRAIN_PREFIX = "train:"


def build_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str,
  block_length: int = 288,
  tagger: Tagger | None = tag,
  drop_titles: Sequence[str] = (),
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  overwrite: bool = False,
  blocks_per_shard: int = 200_000,
  version: int = 1,
  name: str | None = None,
) -> BuildSummary:
  """Builds a corpus directory, which appears complete or not at all.

  Args:
    inputs: Files or glob patterns of `{"title": …, "text": …}` lines.
    output_dir: Corpus directory.
    vocab: Vocabulary file, or `train:SIZE` to learn one from the input.
    block_length: Largest number of tokens of `[CLS] title [SEP] body [SEP]`.
    tagger: Function that finds salient spans; None finds none.
    drop_titles: Texts, or "wikipedia" for lists and disambiguation pages;
      documents whose titles contain one are left out.
    unescape_html: Whether `&amp;` is read as `&` in titles and texts.
    skip_bad_lines: Whether lines that are malformed or repeat an id are
      counted instead of raising an error.
    overwrite: Whether a corpus at `output_dir` is replaced.
    blocks_per_shard: Number of blocks at which a shard ends, once the current
      document is complete.
    name: Name of the corpus, part of its block ids: two corpora that a run
      reads need two names. None takes the directory's.

  Raises:
    InputError: The input cannot be read, or gives no block.
    CorpusError: An argument is wrong, or `output_dir` has other files.
    TargetError, DiskFullError: `output_dir` cannot be written.
    VocabularyError: The vocabulary cannot be used.
  """
  if block_length < MIN_BLOCK_LENGTH:
    raise CorpusError(
      f"block_length={block_length} is too short for a title and a body; give "
      f"{MIN_BLOCK_LENGTH} or more (released REALM has 288)"
    )
  require_shard_size(blocks_per_shard)
  check_target(output_dir, overwrite=overwrite)
  source = DocumentSource(
    inputs,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    skip_bad_lines=skip_bad_lines,
  )
  vocabulary = _vocabulary(vocab, source)
  summary = BuildSummary()
  with CorpusDirectoryWriter.open(
    output_dir,
    pieces=vocabulary.pieces,
    blocks_per_shard=blocks_per_shard,
    name=name,
    overwrite=overwrite,
  ) as writer:
    BlockBuilder(
      vocabulary=vocabulary,
      shards=writer.shards,
      corpus_name=writer.name,
      block_length=block_length,
      tagger=tagger,
      summary=summary,
    ).add_all(source.documents(summary))
    if not summary.blocks:
      raise InputError(
        f"no document in {', '.join(inputs)} gave a block (skipped: "
        f"{dict(summary.skipped) or 'nothing, there are no lines'}); a corpus "
        "needs at least one"
      )
    writer.finish(
      version=version,
      block_length=block_length,
      summary=summary.to_json(),
      drop_titles=source.drop_titles,
    )
  return summary


def require_shard_size(blocks_per_shard: int) -> None:
  """Raises `CorpusError` for shards that could hold no block."""
  if blocks_per_shard < 1:
    raise CorpusError(f"blocks_per_shard={blocks_per_shard}; give 1 or more")


def _vocabulary(vocab: str, source: DocumentSource) -> WordpieceVocabulary:
  """Reads a vocabulary file, or trains a vocabulary on the documents."""
  if not vocab.startswith(_TRAIN_PREFIX):
    return WordpieceVocabulary(vocab)
  size = vocab.removeprefix(_TRAIN_PREFIX)
  if not size.isdecimal():
    raise CorpusError(
      f"--vocab={vocab}: {size!r} is not a number of pieces; write for "
      "example --vocab=train:8192"
    )
  logging.info("Training a vocabulary of at most %s pieces", size)
  # What is skipped is counted when the blocks are made.
  documents = source.documents(BuildSummary(), label="documents (vocabulary)")
  texts = (text for doc in documents for text in (doc.title, doc.text))
  return vocabulary_of(train_vocabulary(texts, int(size)))
