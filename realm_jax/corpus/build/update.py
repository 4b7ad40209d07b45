"""Changes in a corpus: documents added, replaced and removed by their ids.

The result is a new version of the corpus, with what a build of the changed
text would have, in another order. Blocks of documents that did not change
keep their ids, their text and their files.
"""

from collections.abc import Iterator, Sequence

from etils import epath

from realm_jax.corpus.build.block_builder import BlockBuilder
from realm_jax.corpus.build.documents import Document, Removal
from realm_jax.corpus.build.source import DROPPED_TITLES, DocumentSource, chunks
from realm_jax.corpus.build.summary import UpdateSummary
from realm_jax.corpus.build.version_writer import VersionWriter
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.store import Corpus
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import WordpieceVocabulary


def update_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str | None = None,
  block_length: int | None = None,
  tagger: Tagger | None = tag,
  drop_titles: Sequence[str] = DROPPED_TITLES,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  blocks_per_shard: int = 200_000,
  keep_versions: int | None = None,
) -> UpdateSummary:
  """Makes a new version of a corpus from JSON Lines of changes.

  A line with an id that the corpus has replaces the document, with one that
  it does not have adds it, and `{"id": …, "remove": true}` removes it. Whoever
  has the version before open goes on reading it, for as long as that is kept.

  Args:
    inputs: files or glob patterns of changes.
    output_dir: the corpus directory.
    vocab: the file of the corpus's vocabulary, which is taken anyway.
    block_length: the corpus's, which is taken anyway.
    tagger: finds salient spans; with None there are none. Give the build's.
    drop_titles: documents whose title contains one of these are left out,
      and gone if they were in.
    unescape_html: read `&amp;` as `&` in titles and texts.
    skip_bad_lines: count lines that are malformed, repeat an id or remove
      what is not there, and go on.
    blocks_per_shard: a shard ends with the document that reaches this.
    keep_versions: how many of the newest versions stay in the directory. None
      keeps all: a run that is resumed reads its data from the version that it
      began with, and an earlier version takes no more space than what has
      gone since. Whoever has a version open that goes reads on only in those
      of its files that it has mapped.

  Returns:
    What changed; if nothing did, there is no new version.

  Raises:
    InputError: the input cannot be read, or removes what is not there.
    CorpusError: there is no corpus, an argument is not the corpus's, another
      process is changing it, or nothing would be left.
  """
  if blocks_per_shard < 1:
    raise CorpusError(f"blocks_per_shard={blocks_per_shard}; give 1 or more")
  if keep_versions is not None and keep_versions < 1:
    raise CorpusError(
      f"keep_versions={keep_versions}; give 1, to keep the newest, or more"
    )
  source = DocumentSource(
    inputs,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    skip_bad_lines=skip_bad_lines,
  )
  with VersionWriter(output_dir, blocks_per_shard=blocks_per_shard) as writer:
    corpus = writer.corpus
    _require_settings(corpus, vocab, block_length)
    summary = UpdateSummary(version=corpus.version)
    builder = BlockBuilder(
      vocabulary=corpus.vocabulary,
      writer=writer.shards,
      block_length=corpus.block_length,
      tagger=tagger,
      summary=summary.new,
    )
    for chunk in chunks(_changed(source, writer, summary)):
      builder.add(chunk)
    summary.blocks_removed = writer.known.num_blocks_taken
    if summary.changes_something:
      summary.version = writer.version
      writer.finish(summary=summary.to_json(), keep_versions=keep_versions)
  return summary


def _require_settings(
  corpus: Corpus, vocab: str | None, block_length: int | None
) -> None:
  """Refuses arguments that would make other blocks than the corpus's."""
  if block_length not in (None, corpus.block_length):
    raise CorpusError(
      f"--block_length={block_length}, and {corpus.source} has "
      f"{corpus.block_length}, which an update keeps; leave it out, or build "
      "the corpus again"
    )
  if vocab is None:
    return
  if (
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
  """The documents to cut into blocks; takes away those that they replace."""
  known = writer.known
  for change in source.changes(summary.new):
    place = known.find(change.id)
    if isinstance(change, Removal):
      if place is None:
        source.refuse(
          InputError(
            f"{change.place}: nothing to remove, no document has the id "
            f"{change.id!r} in version {writer.corpus.version} of "
            f"{writer.corpus.source}"
          ),
          reason="unknown ids to remove",
        )
        continue
      summary.removed += 1
      known.take(place)
    elif source.is_dropped(change, summary.new):
      if place is not None:
        summary.removed += 1
        known.take(place)
    elif place is None:
      summary.added += 1
      yield change
    elif known.is_same(place, change):
      summary.unchanged += 1
    else:
      summary.replaced += 1
      known.take(place)
      yield change
