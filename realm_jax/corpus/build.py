"""Builds a corpus directory from text.

A shard of the corpus has the blocks of one piece of the input, which one
process makes and writes. Pieces depend only on the input, so any number of
processes, here or on other machines, writes the same bytes.

Before that, one pass over the input finds repeated ids; if needed, further
passes learn a vocabulary and count phrases. Finally, duplicate blocks are found
by their hashes.
"""

import contextlib
import functools
import importlib.util
import io
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus import CorpusError, InputError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.block_builder import BlockBuilder, Built, build_piece
from realm_jax.corpus.documents import RowReader
from realm_jax.corpus.linker import Linker, LinkSource, find_mentions
from realm_jax.corpus.manifest import ShardRecord
from realm_jax.corpus.shard import MIN_BLOCK_LENGTH
from realm_jax.corpus.sources import DocumentSource, Input, Piece, named
from realm_jax.corpus.summary import BuildSummary
from realm_jax.corpus.views import LEARNED_BYTES, parse_views, write_models
from realm_jax.corpus.workers import map_in_processes
from realm_jax.corpus.writing import (
  SHARD_BYTES,
  check_target,
  finish,
  new_corpus,
  write_removed,
)
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.paths import is_remote
from realm_jax.text.languages import ENGLISH, WITHOUT_CAPITALS, require_language
from realm_jax.text.normalization import Normalization
from realm_jax.text.recurring_phrases import (
  SAMPLE_BYTES,
  RecurringPhrases,
  count_phrases,
)
from realm_jax.text.salient_spans import Tagger, default_tagger, find_tagger
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary

# Approximate number of shards. It is lower or higher if shards would have less
# than this size, or more than `SHARD_BYTES`, which a process has in memory.
_NUM_SHARDS = 256
_MIN_SHARD_BYTES = 8 << 20
_TRAIN = "train:"
# Bytes of text from which a vocabulary is learned; larger inputs are sampled.
_VOCABULARY_BYTES = 256 << 20


def build_corpus(
  inputs: Sequence[Input],
  output_dir: epath.PathLike,
  *,
  vocab: str | None = None,
  view: Sequence[str] = (),
  block_length: int = 288,
  language: str = ENGLISH,
  cased: bool | None = None,
  tagger: Tagger | str | None = "default",
  fields: Sequence[str] = (),
  drop_titles: Sequence[str] = (),
  links: LinkSource = "given",
  link_table: str | None = None,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  overwrite: bool = False,
  shard_bytes: int | None = None,
  name: str | None = None,
  remove_duplicates: bool = False,
  workers: int = 1,
  runner: str | None = None,
  pipeline_options: Sequence[str] = (),
) -> BuildSummary:
  """Builds a corpus directory, which appears complete or not at all.

  Args:
    inputs: Files or glob patterns of `{"title": …, "text": …}` lines, plain or
      compressed (.gz, .bz2, .xz, .zst), of TSV, parquet or texts; folders of
      texts or of saved data sets; `tfds:NAME/CONFIG[:SPLIT]`;
      `seqio:MODULE:TASK[:SPLIT]`; or texts, each a dictionary like such a
      line. Files come first, sorted, and texts last; rows keep their order.
    output_dir: Corpus directory to make, or to update.
    vocab: BERT vocabulary file, the directory of a model with one, or
      `train:SIZE` to learn at most SIZE pieces from the input, or from a sample
      of 256 MiB.
    view: Further vocabulary in which the corpus stores its texts, for a reader
      such as T5: NAME:spiece.model, or NAME:train:SIZE to learn a SentencePiece
      model of at most SIZE pieces from the input, or a sample of 32 MiB.
    block_length: Largest number of wordpieces of `[CLS] title [SEP] body
      [SEP]`.
    language: ISO 639-1 code of the text's language, which decides where
      sentences end; a line of JSON may have a field `language`.
    cased: Whether the vocabulary keeps capitals and accents. By default this
      follows from the files beside it (see `text.vocabulary_files`); a learned
      vocabulary keeps them if the language's script has no capitals.
    tagger: Function that finds salient spans, or its name: rules, recurring,
      none, bert:DIRECTORY of a BertForTokenClassification in Hugging Face's
      format, or module.name of a callable (text, title) -> [(start byte, limit
      byte, kind)]. The default is rules for English, and recurring for other
      languages. Documents whose input has spans keep these.
    fields: Names of further fields of a document that the corpus keeps, such as
      its date, to filter by (`corpus.filters`): texts, numbers, true or false,
      or lists of these.
    drop_titles: Texts; documents with one of them in the title are left out.
      "wikipedia" stands for lists and disambiguation pages (List of, Index of,
      Outline of, (disambiguation)), as in REALM. In an update, the default is
      the build's texts, and "" is none.
    links: Source of links to other documents: given, the field `links` of a
      document; mentions, also the titles in the text of a document without
      links, except those that 1% of the texts mention; or none. Updates use the
      same source.
    link_table: File of further links, which may be compressed. Each line has
      the title of a document, a tab, and a title that it links to.
    unescape_html: Whether to read `&amp;` as `&` in titles and texts.
    skip_bad_lines: Whether to count lines that are malformed or repeat an id,
      instead of raising an error.
    overwrite: Whether to replace a corpus at `output_dir`.
    shard_bytes: Number of bytes of uncompressed input at which a shard ends.
      None is 1/256 of the input, but at least 8 and at most 64 MiB.
    name: Name of the corpus, which is part of block ids; by default the name of
      the directory. Two corpora of a run need different names.
    remove_duplicates: Whether to leave out blocks with the same title and body
      as an earlier one.
    workers: Number of processes on this machine, at most one for each core; the
      corpus is the same for any number.
    runner: Apache Beam runner, such as DirectRunner or DataflowRunner, instead
      of processes on this machine; the corpus is the same.
    pipeline_options: Options of the Beam runner, such as `--project=…`.

  Raises:
    InputError: The input cannot be read, or has no block.
    CorpusError: An argument is wrong, or `output_dir` has other files.
    LanguageError: There is no such language.
    TargetError, DiskFullError, StoreAccessError: `output_dir` cannot be
      written, or a bucket not read.
    VocabularyError: The vocabulary cannot be used.

  Example:
    >>> texts = [{"title": "Ada Stone", "text": "Ada was born in Tarn."}]
    >>> summary = build_corpus(texts, "notes", vocab="corpus/vocab.txt")
    >>> summary.documents, summary.blocks
    (1, 1)
  """
  if vocab is None:
    raise CorpusError(
      "--vocab is missing; give a BERT vocabulary file, or --vocab=train:SIZE"
    )
  _require_valid(
    vocab=vocab,
    block_length=block_length,
    links=links,
    link_table=link_table,
    workers=workers,
    runner=runner,
    pipeline_options=pipeline_options,
  )
  require_language(language)
  output_dir = epath.Path(output_dir)
  require_readable(*named(inputs), link_table, vocab, output_dir)
  parsed_views = parse_views(view)
  check_target(output_dir, overwrite=overwrite)
  require_writable(output_dir)
  words = None
  if not vocab.startswith(_TRAIN):
    words = read_vocabulary(vocab, cased=cased)
  reader = RowReader(
    fields=fields,
    drop_titles=drop_titles,
    unescape_html=unescape_html,
    reads_links=links != "none",
  )
  source = DocumentSource(
    inputs, reader, skip_bad_lines=skip_bad_lines, link_table=link_table
  )
  summary = source.summary
  if words is None:
    size = int(vocab.removeprefix(_TRAIN))
    cased = language in WITHOUT_CAPITALS if cased is None else cased
    words = _learned_vocabulary(source, size, cased=cased)
  views = {n: v(_texts(source, LEARNED_BYTES)) for n, v in parsed_views.items()}
  stride = source.num_bytes // SAMPLE_BYTES + 1
  sample = (document.text for document in source.documents(stride))
  mentions = None
  if links == "mentions":
    titles = (document.title for document in source.documents())
    texts = (document.text for document in source.documents(stride))
    mentions = find_mentions(titles, texts)
  # Resolved, because a relative path such as ".." has no name.
  name = name or Path(output_dir).resolve().name
  blocks = BlockBuilder(
    vocabulary=words,
    corpus_name=name,
    block_length=block_length,
    language=language,
    tagger=tagger_of(tagger, language, summary, sample),
    linker=Linker(known=source.title_keys, mentions=mentions),
  )
  with new_corpus(output_dir, overwrite=overwrite) as staging:
    directory = epath.Path(staging)
    if runner is not None and is_remote(output_dir):
      # Other machines also write to it. It is no corpus without corpus.json.
      directory = output_dir
      (directory / manifests.MANIFEST_NAME).unlink(missing_ok=True)
    share = source.num_bytes // _NUM_SHARDS
    usual_bytes = min(max(share, _MIN_SHARD_BYTES), SHARD_BYTES)
    shards = _build_shards(
      functools.partial(build_piece, blocks, views, str(directory)),
      source,
      directory,
      shard_bytes=shard_bytes or usual_bytes,
      workers=workers,
      runner=runner,
      pipeline_options=pipeline_options,
    )
    if not shards:
      skipped = dict(summary.skipped) or "nothing, there are no lines"
      places = ", ".join(named(inputs)) or "the texts"
      raise InputError(
        f"no document in {places} gave a block (skipped: "
        f"{skipped}); a corpus needs at least one"
      )
    _find_duplicates(directory, staging, shards, summary, remove_duplicates)
    finish(
      staging,
      name=name,
      vocabulary=words,
      views=write_models(staging, views),
      block_length=block_length,
      shards=shards,
      summary=vars(summary),
      drop_titles=reader.dropped_titles,
      links=links,
      fields=fields,
      language=language,
    )
  return summary


def _require_valid(
  *,
  vocab: str,
  block_length: int,
  links: str,
  link_table: str | None,
  workers: int,
  runner: str | None,
  pipeline_options: Sequence[str],
) -> None:
  """Raises a `CorpusError` for arguments that no build can have."""
  trains, size = vocab.startswith(_TRAIN), vocab.removeprefix(_TRAIN)
  for is_met, message in (
    (
      links in typing.get_args(LinkSource),
      f"--links={links}; give given, mentions or none",
    ),
    (
      runner is None or link_table is None,
      "--link_table is read into the memory of this machine, and --runner uses "
      "others; give --workers instead",
    ),
    (
      block_length >= MIN_BLOCK_LENGTH,
      f"block_length={block_length} is too short for a title and a body; give "
      f"{MIN_BLOCK_LENGTH} or more (released REALM has 288)",
    ),
    (workers >= 1, f"workers={workers}; give 1 or more"),
    (
      not trains or size.isdecimal(),
      f"--vocab={vocab}: {size!r} is not a number of pieces; write for "
      "example --vocab=train:8192",
    ),
    (
      runner is not None or not pipeline_options,
      "--pipeline_options are for Beam; give --runner, too",
    ),
    (
      runner is None or workers == 1,
      "--workers is for processes on this machine, and --runner for Beam, "
      "which takes their number from --pipeline_options; give one of them",
    ),
    (
      runner is None or importlib.util.find_spec("apache_beam") is not None,
      "--runner needs Apache Beam, which `make env` and the extra `beam` "
      "install; install it, or give --workers",
    ),
  ):
    if not is_met:
      raise CorpusError(message)


def tagger_of(
  tagger: Tagger | str | None,
  language: str,
  summary: BuildSummary,
  sample: Iterable[str],
) -> Tagger | None:
  """Returns a tagger by its name; a default is recorded in the summary.

  The tagger of recurring phrases counts them in a sample of the corpus's texts.
  Raises a `ValueError` if no tagger has the name.
  """
  if tagger == "default":
    tagger = summary.tagger = default_tagger(language)
  if isinstance(tagger, str):
    tagger = find_tagger(tagger, language)
  if not isinstance(tagger, RecurringPhrases):
    return tagger
  logging.info("Counting the phrases that recur")
  return count_phrases(sample, tagger.language)


def _learned_vocabulary(
  source: DocumentSource, size: int, *, cased: bool
) -> WordpieceVocabulary:
  """Learns at most `size` wordpieces from the texts, or from a sample."""
  # Imported late, because it imports TensorFlow (the extra `train`).
  from realm_jax.text.vocabulary_training import train_vocabulary

  logging.info("Training a vocabulary of at most %s pieces", size)
  texts = _texts(source, _VOCABULARY_BYTES)
  pieces = train_vocabulary(texts, size, cased=cased)
  return WordpieceVocabulary(pieces, Normalization.of(cased=cased))


def _build_shards(
  build: Callable[[Piece], Built],
  source: DocumentSource,
  directory: epath.Path,
  *,
  shard_bytes: int,
  workers: int,
  runner: str | None,
  pipeline_options: Sequence[str],
) -> list[ShardRecord]:
  """Builds a shard of each piece of a source, and adds up their counts."""
  if runner is None:
    built = map_in_processes(build, source.pieces(shard_bytes), workers)
  else:
    # Imported late: Beam is an extra.
    from realm_jax.corpus import beam

    options = [f"--runner={runner}", *pipeline_options]
    built = beam.map_pieces(build, source, shard_bytes, directory, options)
  shards: list[ShardRecord] = []
  progress = Progress("documents", total=source.num_rows)
  with contextlib.closing(built), progress:
    for record, counts in built:
      shards += [record] if record else []
      source.summary.merge(counts)
      progress.advance(counts["documents"])
  return shards


def _find_duplicates(
  directory: epath.Path,
  staging: Path,
  shards: Sequence[ShardRecord],
  summary: BuildSummary,
  remove: bool,
) -> None:
  """Counts duplicates of earlier blocks, and may list them as removed.

  `shards` are in `directory`. Lists are written to `staging`, and added to the
  records of the shards.
  """

  def load(shard: str, name: str) -> np.ndarray:
    path = directory / shard / f"{name}.npy"
    return np.load(io.BytesIO(path.read_bytes()))

  hashes = [load(shard["name"], "content_hashes") for shard in shards]
  _, firsts = np.unique(np.concatenate(hashes), return_index=True)
  limits = np.cumsum([len(array) for array in hashes])
  is_duplicate = np.ones(limits[-1], bool)
  is_duplicate[firsts] = False
  num_duplicates = int(is_duplicate.sum())
  if not remove:
    summary.duplicate_blocks = num_duplicates
    return
  summary.skipped["blocks that equal an earlier one"] += num_duplicates
  summary.blocks -= num_duplicates
  parts = np.split(is_duplicate, limits[:-1])
  for shard, is_removed in zip(shards, parts, strict=True):
    if is_removed.any():
      shard["removed"] = write_removed(
        staging,
        shard["name"],
        is_removed,
        prefix="duplicates",
        array=functools.partial(load, shard["name"]),
      )


def _texts(source: DocumentSource, most: int) -> Iterator[str]:
  """Yields titles and texts; a sample if there are more than `most` bytes."""
  stride = source.num_bytes // most + 1
  total = -(-source.num_rows // stride)
  with Progress("documents (vocabulary)", total=total) as progress:
    for document in source.documents(stride):
      progress.advance()
      yield from (document.title, document.text)
