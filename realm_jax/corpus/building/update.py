"""Updates a corpus: documents are added, replaced and removed by their ids.

The new version has the blocks that a build of the changed text would have, in
another order. Blocks of unchanged documents keep their ids, text and files.
"""

from collections.abc import Iterator, Sequence

from etils import epath

from realm_jax.corpus.building.block_builder import BlockBuilder, chunks
from realm_jax.corpus.building.corpus import require_shard_size
from realm_jax.corpus.building.sources.document_source import DocumentSource
from realm_jax.corpus.building.sources.documents import Document, Removal
from realm_jax.corpus.building.summary import UpdateSummary
from realm_jax.corpus.building.version_writer import VersionWriter
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.files.object_store.store_access import (
  require_readable,
  require_writable,
)
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import WordpieceVocabulary


def update_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str | None = None,
  block_length: int | None = None,
  tagger: Tagger | None = tag,
  drop_titles: Sequence[str] | None = None,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  blocks_per_shard: int = 200_000,
  keep_versions: int | None = None,
) -> UpdateSummary:
  """Makes a new version of a corpus from JSON Lines of changes.

  A line with an id that the corpus has replaces that document, one with a new
  id adds a document, and `{"id": …, "remove": true}` removes one. Readers of
  the version before continue to read it, as long as it is kept.

  Other arguments are those of `build_corpus`; give the tagger and the reading
  of HTML that the build had.

  Args:
    vocab: Vocabulary file, which must be that of the corpus; None takes it.
    block_length: Block length, which must be that of the corpus; None takes it.
    drop_titles: Texts in titles of documents that are left out, and removed if
      the corpus has them. None takes those of the build.
    skip_bad_lines: Whether lines that are malformed, repeat an id or remove
      an unknown document are counted instead of raising an error.
    keep_versions: Number of the newest versions to keep. None keeps all: a
      resumed run reads its data from the version that it began with, and an
      earlier version takes only the space of what was removed since. A reader
      of a version that is not kept can read only the files that it has mapped.

  Returns:
    Counts of what changed. If nothing did, there is no new version.

  Raises:
    InputError: The input cannot be read, or removes an unknown document.
    CorpusError: There is no corpus, an argument does not fit it, or no block
      would be left.
    TargetError, DiskFullError, StoreAccessError: The directory cannot be
      written, or a bucket not read.
  """
  require_shard_size(blocks_per_shard)
  if keep_versions is not None and keep_versions < 1:
    raise CorpusError(
      f"keep_versions={keep_versions}; give 1, to keep the newest, or more"
    )
  require_readable(*inputs)
  require_writable(output_dir)
  with VersionWriter.open(
    output_dir, blocks_per_shard=blocks_per_shard
  ) as writer:
    corpus = writer.corpus
    _require_settings(corpus, vocab, block_length)
    source = DocumentSource(
      inputs,
      drop_titles=corpus.drop_titles if drop_titles is None else drop_titles,
      unescape_html=unescape_html,
      skip_bad_lines=skip_bad_lines,
    )
    summary = UpdateSummary(version=corpus.version)
    builder = BlockBuilder(
      vocabulary=corpus.vocabulary,
      corpus_name=corpus.name,
      block_length=corpus.block_length,
      tagger=tagger,
    )
    for documents in chunks(_changed(source, writer, summary)):
      built = builder.build(documents)
      summary.new.add_all(built, len(documents))
      writer.shards.append(built.blocks)
    summary.blocks_removed = writer.existing.num_blocks_removed
    if summary.changes_something:
      summary.version = writer.version
      writer.finish(
        summary=summary.to_json(),
        drop_titles=source.drop_titles,
        keep_versions=keep_versions,
      )
  return summary


def _require_settings(
  corpus: Corpus, vocab: str | None, block_length: int | None
) -> None:
  """Raises an error for arguments that would make other blocks."""
  if block_length not in (None, corpus.block_length):
    raise CorpusError(
      f"--block_length={block_length}, and {corpus.source} has "
      f"{corpus.block_length}, which an update keeps; leave it out, or build "
      "the corpus again"
    )
  if vocab is not None and (
    vocab.startswith("train:")
    or WordpieceVocabulary(vocab).sha256 != corpus.vocab_sha256
  ):
    raise CorpusError(
      f"--vocab={vocab} is not the vocabulary of {corpus.source}, which an "
      "update keeps; leave it out, or build the corpus again"
    )


def _changed(
  source: DocumentSource, writer: VersionWriter, summary: UpdateSummary
) -> Iterator[Document]:
  """Yields new and changed documents; removes what they replace."""
  existing, corpus = writer.existing, writer.corpus
  for change in source.changes(summary.new):
    found = existing.find(change.id)
    if isinstance(change, Removal) and found is None:
      source.refuse(
        f"{change.place}: nothing to remove, no document has the id "
        f"{change.id!r} in version {corpus.version} of {corpus.source}",
        reason="unknown ids to remove",
        summary=summary.new,
      )
    elif isinstance(change, Removal) or source.is_dropped(change, summary.new):
      if found is not None:
        summary.removed += 1
        existing.remove(found)
    elif found is None:
      summary.added += 1
      yield change
    elif existing.is_same(found, change):
      summary.unchanged += 1
    else:
      summary.replaced += 1
      existing.remove(found)
      yield change
