"""Builds a corpus directory from text.

Parts are made of chunks of rows, in any number of processes; the plan of shards
follows from the parts' counts, in the order of the input; and shards are joined
from parts. Parts take as much space as the corpus, and are removed.
"""

import contextlib
import itertools
import secrets
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.corpus.building.directory_writer import (
  CorpusDirectoryWriter,
  check_target,
)
from realm_jax.corpus.building.parallel.in_process import InProcess
from realm_jax.corpus.building.parallel.parts import PartMaker
from realm_jax.corpus.building.parallel.plan import ShardPlanner
from realm_jax.corpus.building.parallel.runner import Runner
from realm_jax.corpus.building.parallel.shards import ShardMaker, read_records
from realm_jax.corpus.building.sources.document_source import DocumentSource
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.manifest import ShardRecord
from realm_jax.corpus.shards.format import MANIFEST_NAME, MIN_BLOCK_LENGTH
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.object_store.store_access import (
  require_readable,
  require_writable,
)
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  train_vocabulary,
  vocabulary_of,
)

_TRAIN_PREFIX = "train:"
_IN_THIS_PROCESS = InProcess()


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
  remove_duplicates: bool = False,
  runner: Runner = _IN_THIS_PROCESS,
) -> BuildSummary:
  """Builds a corpus directory, which appears complete or not at all.

  Args:
    inputs: Files or glob patterns of `{"title": …, "text": …}` lines, plain or
      compressed (.gz, .zst); `tfds:NAME/CONFIG[:SPLIT]`; or
      `seqio:MODULE:TASK[:SPLIT]`. Rows keep the order of files and of the rows
      in them; files of JSON Lines come first, sorted.
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
    remove_duplicates: Whether blocks with the title and body of an earlier one
      are removed.
    runner: What runs the build; the corpus does not depend on it.

  Raises:
    InputError: The input cannot be read, or gives no block.
    CorpusError: An argument is wrong, or `output_dir` has other files.
    TargetError, DiskFullError, StoreAccessError: `output_dir` cannot be
      written, or a bucket not read.
    VocabularyError: The vocabulary cannot be used.
  """
  if block_length < MIN_BLOCK_LENGTH:
    raise CorpusError(
      f"block_length={block_length} is too short for a title and a body; give "
      f"{MIN_BLOCK_LENGTH} or more (released REALM has 288)"
    )
  require_shard_size(blocks_per_shard)
  require_readable(*inputs, vocab, output_dir)
  check_target(output_dir, overwrite=overwrite)
  require_writable(output_dir)
  source = DocumentSource(
    inputs,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    skip_bad_lines=skip_bad_lines,
  )
  vocabulary = _vocabulary(vocab, source)
  with CorpusDirectoryWriter.open(
    output_dir,
    pieces=vocabulary.pieces,
    blocks_per_shard=blocks_per_shard,
    name=name,
    overwrite=overwrite,
  ) as writer:
    planner = ShardPlanner(source, blocks_per_shard=blocks_per_shard)
    shards = _build_shards(
      writer,
      planner,
      runner,
      source=source,
      block_length=block_length,
      tagger=tagger,
      remove_duplicates=remove_duplicates,
    )
    writer.finish(
      version=version,
      block_length=block_length,
      summary=planner.summary.to_json(),
      drop_titles=source.drop_titles,
      shards=shards,
    )
  return planner.summary


def _build_shards(
  writer: CorpusDirectoryWriter,
  planner: ShardPlanner,
  runner: Runner,
  *,
  source: DocumentSource,
  block_length: int,
  tagger: Tagger | None,
  remove_duplicates: bool,
) -> list[ShardRecord]:
  """Makes the parts, plans the shards and makes these."""
  with _folders(writer, runner) as (parts, shards):
    make_part = PartMaker(
      source=source,
      pieces=writer.pieces,
      corpus_name=writer.name,
      block_length=block_length,
      tagger=tagger,
      directory=str(parts),
      stop_at_malformed=runner.stops_at_malformed,
    )
    sizes = [file.size for file in source.files]
    starts = [0, *itertools.accumulate(sizes)]
    with (
      runner.start(make_part) as run,
      Progress("documents", total_bytes=sum(sizes) or None) as progress,
    ):
      for path in run.make_parts(source.files):
        part = planner.add(path)
        bytes_read = starts[part.file] + part.bytes_read
        progress.advance(part.num_rows, bytes_read=bytes_read)
      if not planner.summary.blocks:
        names = ", ".join(source.inputs)
        skipped = dict(planner.summary.skipped)
        raise InputError(
          f"no document in {names} gave a block (skipped: "
          f"{skipped or 'nothing, there are no lines'}); a corpus needs at "
          "least one"
        )
      plans = planner.shards(remove_duplicates=remove_duplicates)
      make_shard = ShardMaker(
        directory=str(shards),
        records=str(parts),
        corpus_name=writer.name,
        vocab_size=len(writer.pieces),
      )
      run.make_shards(make_shard, plans)
    return read_records(parts, plans)


@contextlib.contextmanager
def _folders(
  writer: CorpusDirectoryWriter, runner: Runner
) -> Iterator[tuple[epath.Path, epath.Path]]:
  """Yields a folder of parts, which is removed, and that of the shards.

  They are local, unless other machines take part in the build.
  """
  shards = epath.Path(writer.staging)
  parts = shards / "parts"
  if runner.uses_other_machines and is_remote(writer.target):
    # A directory without corpus.json is no corpus.
    (writer.target / MANIFEST_NAME).unlink(missing_ok=True)
    shards = writer.target
    name = f"{writer.target.name}.parts-{secrets.token_hex(4)}"
    parts = writer.target.parent / name
  parts.mkdir(parents=True)
  try:
    yield parts, shards
  finally:
    parts.rmtree()


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
