"""Builds a corpus directory from text.

A shard of the corpus is a piece of the input: some slices of its rows, whose
blocks one process makes and writes. Pieces follow from the input alone, so that
any number of processes, here or on other machines, write the same bytes.

Before that, a pass over the input finds ids that occur again. After that,
blocks that equal an earlier one are found by their hashes.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import multiprocessing
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Bool

from realm_jax.console import Progress
from realm_jax.corpus import CorpusError, InputError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.block_builder import BlockBuilder, chunks
from realm_jax.corpus.directory_writer import (
  CorpusDirectoryWriter,
  check_target,
)
from realm_jax.corpus.documents import Document
from realm_jax.corpus.manifest import ShardRecord
from realm_jax.corpus.shard import (
  MIN_BLOCK_LENGTH,
  SHARD_BYTES,
  Blocks,
  as_stored,
  shard_name,
  write_removed,
  write_shard,
)
from realm_jax.corpus.sources import SLICE_BYTES, DocumentSource, Slice
from realm_jax.corpus.summary import BuildSummary
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.json_files import JsonValue
from realm_jax.storage.local_disk import ScratchDirectory
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  train_vocabulary,
  vocabulary_of,
)

_TRAIN_PREFIX = "train:"
# A shard has at least one slice, and so many that a corpus has about as many
# shards, unless a process had to hold more than `SHARD_BYTES`.
_NUM_SHARDS = 256
# Blocks that a build removed since they equal an earlier one.
_DUPLICATES = "duplicates"
# Pieces that wait for each process, so that none waits for the reader.
_PIECES_PER_WORKER = 2


class Piece(NamedTuple):
  """What becomes a shard: slices of the input, and which rows repeat an id."""

  number: int
  slices: list[Slice]
  repeats: dict[int, int]


# A shard's record, None if it has no block, and counts of a `BuildSummary`. It
# can be written as JSON.
Built: TypeAlias = tuple[ShardRecord | None, dict[str, JsonValue]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PieceBuilder:
  """Makes shards of pieces; it can be sent to other processes.

  Attributes:
    source: The input.
    wordpieces: The vocabulary.
    directory: Folder of the shards, which all processes can access.
  """

  source: DocumentSource
  wordpieces: tuple[str, ...]
  corpus_name: str
  block_length: int
  tagger: Tagger | None
  directory: str

  @functools.cached_property
  def _block_builder(self) -> BlockBuilder:
    return BlockBuilder(
      vocabulary=vocabulary_of(self.wordpieces),
      corpus_name=self.corpus_name,
      block_length=self.block_length,
      tagger=self.tagger,
    )

  def deal(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yields pieces, with their rows if these can only be read in order.

    Such pieces are all those of one file.
    """
    last = pieces[-1].slices[-1]
    file = self.source.files[last.file]
    if last.first == 1 or file.is_seekable:
      yield from pieces
      return
    rows = file.rows()
    for piece in pieces:
      slices = [
        part._replace(rows=list(itertools.islice(rows, part.num_rows)))
        for part in piece.slices
      ]
      yield piece._replace(slices=slices)

  def build(self, piece: Piece) -> Built:
    """Writes a shard.

    Raises:
      OSError: It cannot be written.
    """
    summary = BuildSummary()
    documents = (
      entry
      for part in piece.slices
      for entry in self.source.entries(part, piece.repeats)
      if isinstance(entry, Document)
      and not self.source.is_dropped(entry, summary)
    )
    parts: list[Blocks] = []
    for chunk in chunks(documents):
      built = self._block_builder.build(chunk)
      summary.add(built, len(chunk))
      if built.documents.size:
        parts.append(as_stored(built.blocks, vocab_size=len(self.wordpieces)))
    record = self._write(shard_name(piece.number), parts) if parts else None
    return record, summary.to_json()

  def _write(self, name: str, parts: Sequence[Blocks]) -> ShardRecord:
    target = epath.Path(self.directory)
    if not is_remote(target):
      # Of an attempt that failed.
      shutil.rmtree(Path(target) / name, ignore_errors=True)
      return write_shard(Path(target) / name, parts)
    with ScratchDirectory() as scratch:
      record = write_shard(scratch.path / name, parts)
      upload_directory(scratch.path, target)
    return record


@runtime_checkable
class Runner(Protocol):
  """Runs a build in some processes."""

  @property
  def uses_other_machines(self) -> bool:
    """Whether the processes may have no access to this machine's files."""
    ...

  def build(
    self, builder: PieceBuilder, groups: Sequence[Sequence[Piece]]
  ) -> Generator[Built, None, None]:
    """Builds what `builder.deal` yields of each group; in order."""
    ...


@dataclasses.dataclass(frozen=True)
class InProcess:
  """Runs a build in `workers` processes; with 1, in this one."""

  workers: int = 1
  uses_other_machines: bool = False

  def __post_init__(self) -> None:
    if self.workers < 1:
      raise CorpusError(f"--workers={self.workers}; give 1 or more")

  def build(
    self, builder: PieceBuilder, groups: Sequence[Sequence[Piece]]
  ) -> Generator[Built, None, None]:
    """Builds in processes that share nothing with this one."""
    pieces = itertools.chain.from_iterable(map(builder.deal, groups))
    if self.workers == 1:
      yield from map(builder.build, pieces)
      return
    pool = futures.ProcessPoolExecutor(
      self.workers,
      mp_context=multiprocessing.get_context("spawn"),
      initializer=_set_builder,
      initargs=(builder,),
    )
    waiting = collections.deque[futures.Future[Built]]()
    try:
      for piece in pieces:
        waiting.append(pool.submit(_build, piece))
        if len(waiting) > _PIECES_PER_WORKER * self.workers:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      pool.shutdown(cancel_futures=True)


# Set in each worker when it starts: the vocabulary need not follow each piece.
_builder: PieceBuilder | None = None


def _set_builder(builder: PieceBuilder) -> None:
  global _builder
  _builder = builder


def _build(piece: Piece) -> Built:
  assert _builder is not None
  return _builder.build(piece)


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
  shard_bytes: int | None = None,
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
    shard_bytes: Number of bytes of uncompressed input at which a shard ends.
      None takes a 256th of the input, and at least 8 and at most 64 MiB.
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
  if shard_bytes is not None and shard_bytes < 1:
    raise CorpusError(f"shard_bytes={shard_bytes}; give 1 or more")
  require_readable(*inputs, vocab, output_dir)
  check_target(output_dir, overwrite=overwrite)
  require_writable(output_dir)
  source = DocumentSource(
    inputs,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    skip_bad_lines=skip_bad_lines,
    slice_bytes=min(SLICE_BYTES, shard_bytes or SLICE_BYTES),
  )
  vocabulary = _vocabulary(vocab, source)
  with CorpusDirectoryWriter.open(
    output_dir, pieces=vocabulary.pieces, name=name, overwrite=overwrite
  ) as writer:
    directory = epath.Path(writer.staging)
    if runner.uses_other_machines and is_remote(writer.target):
      directory = writer.target
      # A directory without corpus.json is no corpus.
      (directory / manifests.MANIFEST_NAME).unlink(missing_ok=True)
    builder = PieceBuilder(
      source=source,
      wordpieces=vocabulary.pieces,
      corpus_name=writer.name,
      block_length=block_length,
      tagger=tagger,
      directory=str(directory),
    )
    shards, summary = _build_shards(builder, runner, shard_bytes)
    is_duplicate = _duplicates(directory, shards)
    summary.duplicate_blocks = sum(int(found.sum()) for found in is_duplicate)
    if remove_duplicates:
      summary.remove_duplicates()
      _list_removed(writer.staging, directory, shards, is_duplicate)
    writer.finish(
      block_length=block_length,
      summary=summary.to_json(),
      drop_titles=source.drop_titles,
      shards=shards,
    )
  return summary


def _build_shards(
  builder: PieceBuilder, runner: Runner, shard_bytes: int | None
) -> tuple[list[ShardRecord], BuildSummary]:
  """Writes all shards; returns their records, in order, and the counts.

  Raises:
    InputError: The input gives no block.
  """
  source, summary = builder.source, BuildSummary()
  shards: list[ShardRecord] = []
  groups = _pieces(source, *source.scan(summary), shard_bytes)
  with (
    contextlib.closing(runner.build(builder, groups)) as built,
    Progress("shards", total=sum(map(len, groups))) as progress,
  ):
    for record, counts in built:
      shards += [record] if record else []
      summary.merge(counts)
      progress.advance()
  if not shards:
    skipped = dict(summary.skipped) or "nothing, there are no lines"
    raise InputError(
      f"no document in {', '.join(source.inputs)} gave a block (skipped: "
      f"{skipped}); a corpus needs at least one"
    )
  return shards, summary


def _pieces(
  source: DocumentSource,
  slices: Sequence[Slice],
  repeats: Mapping[int, int],
  shard_bytes: int | None,
) -> list[list[Piece]]:
  """Joins slices to pieces of the input.

  Pieces of a file that can only be read in order, and has several slices, are
  of that file alone, and stand in one list.
  """
  if shard_bytes is None:
    share = sum(part.limit - part.start for part in slices) // _NUM_SHARDS
    shard_bytes = min(max(share, SLICE_BYTES), SHARD_BYTES)
  num_slices = collections.Counter(part.file for part in slices)
  groups: list[list[Piece]] = []
  pieces: list[Piece] = []
  size, file = shard_bytes, None
  for part in slices:
    is_dealt = (
      num_slices[part.file] > 1 and not source.files[part.file].is_seekable
    )
    before, file = file, part.file if is_dealt else None
    if size >= shard_bytes or file != before:
      pieces.append(Piece(len(pieces), [], {}))
      size = 0
      if file is None or file != before:
        groups.append([])
      groups[-1].append(pieces[-1])
    pieces[-1].slices.append(part)
    size += part.limit - part.start
  starts = [piece.slices[0].position for piece in pieces]
  for position, number in repeats.items():
    pieces[bisect.bisect(starts, position) - 1].repeats[position] = number
  return groups


def _duplicates(
  directory: epath.Path, shards: Sequence[ShardRecord]
) -> list[Bool[np.ndarray, " n"]]:
  """Returns which blocks of each shard equal an earlier block."""
  hashes = [_load(directory, shard, "content_hashes") for shard in shards]
  flat = np.concatenate(hashes)
  order = np.argsort(flat, kind="stable")
  ordered = flat[order]
  repeated = np.zeros(len(flat), bool)
  repeated[order[1:]] = ordered[1:] == ordered[:-1]
  return np.split(repeated, np.cumsum([len(array) for array in hashes])[:-1])


def _list_removed(
  staging: Path,
  directory: epath.Path,
  shards: Sequence[ShardRecord],
  is_duplicate: Sequence[np.ndarray],
) -> None:
  """Lists duplicate blocks as removed, in files and in the shards' records."""
  for shard, found in zip(shards, is_duplicate, strict=True):
    if found.any():
      shard["removed"] = write_removed(
        staging,
        shard["name"],
        found,
        update=_DUPLICATES,
        lengths=np.diff(_load(directory, shard, "token_ids_offsets")),
        document_starts=_load(directory, shard, "document_starts"),
      )


def _load(directory: epath.Path, shard: ShardRecord, name: str) -> np.ndarray:
  path = directory / shard["name"] / f"{name}.npy"
  return np.load(io.BytesIO(path.read_bytes()))


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
  return vocabulary_of(train_vocabulary(_texts(source), int(size)))


def _texts(source: DocumentSource) -> Iterator[str]:
  """Yields all titles and texts."""
  # What is skipped is counted when the blocks are made.
  summary = BuildSummary()
  with Progress("documents (vocabulary)") as progress:
    for entry in source.all_entries(summary):
      progress.advance()
      if isinstance(entry, Document) and not source.is_dropped(entry, summary):
        yield from (entry.title, entry.text)
