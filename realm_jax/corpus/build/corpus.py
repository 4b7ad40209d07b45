"""From text to a corpus directory: one pass over the text, in flat memory."""

from collections.abc import Iterable, Sequence

from absl import logging
from etils import epath

from realm_jax.corpus.build.block_builder import BlockBuilder
from realm_jax.corpus.build.directory_writer import (
  CorpusDirectoryWriter,
  check_target,
)
from realm_jax.corpus.build.source import DROPPED_TITLES, DocumentSource, chunks
from realm_jax.corpus.build.summary import BuildSummary
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  train_vocabulary,
  vocabulary_of,
)

# [CLS] [SEP] [SEP], and a piece or more of the title and of the body.
_SHORTEST_BLOCK = 8

_TRAIN_PREFIX = "train:"


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
  return vocabulary_of(train_vocabulary(texts, int(size)))


def build_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str,
  block_length: int = 288,
  tagger: Tagger | None = tag,
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
    tagger: finds salient spans; with None there are none.
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
  if block_length < _SHORTEST_BLOCK:
    raise CorpusError(
      f"block_length={block_length} has no room for a title and a body; give "
      f"{_SHORTEST_BLOCK} or more (released REALM has 288)"
    )
  if blocks_per_shard < 1:
    raise CorpusError(f"blocks_per_shard={blocks_per_shard}; give 1 or more")
  check_target(epath.Path(output_dir), overwrite=overwrite)
  source = DocumentSource(
    inputs,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    skip_bad_lines=skip_bad_lines,
  )
  # Not read where the vocabulary is a file's; counted when the blocks are cut.
  training_documents = source.documents(BuildSummary(), label="vocabulary")
  vocabulary = _vocabulary(
    vocab,
    (text for doc in training_documents for text in (doc.title, doc.text)),
  )
  summary = BuildSummary()
  with CorpusDirectoryWriter(
    output_dir,
    pieces=vocabulary.pieces,
    blocks_per_shard=blocks_per_shard,
    overwrite=overwrite,
  ) as writer:
    builder = BlockBuilder(
      vocabulary=vocabulary,
      writer=writer.shards,
      block_length=block_length,
      tagger=tagger,
      summary=summary,
    )
    for chunk in chunks(source.documents(summary, label="blocks")):
      builder.add(chunk)
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
