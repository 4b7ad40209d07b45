"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.{txt,json}  for build_corpus --vocab=MODEL_DIR, or
MODEL_DIR/tokenizer.json    of byte-level pairs
MODEL_DIR/config.json     the model, also for --gin_file
MODEL_DIR/imported.json   what was imported, with the commit if from the hub
MODEL_DIR/snapshots/0…  the vectors of the released blocks, if there are any
CORPUS_DIR                the corpus of these blocks

Released REALM can answer open-domain questions right after the import, because
its blocks were published with their vectors: texts in `block_records.npy` or
`blocks.tfr`, vectors in `block_emb`. Nothing has to be embedded again.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  READER_VOCABULARY,
  VOCABULARY,
  CheckpointStore,
  loop_record,
)
from realm_jax.checkpoints.store import locate as locate_checkpoint
from realm_jax.configuration.bindings import Reference
from realm_jax.configuration.kept import Kept
from realm_jax.console import Progress
from realm_jax.corpus import writing
from realm_jax.corpus.block_builder import BlockBuilder
from realm_jax.corpus.documents import Document
from realm_jax.corpus.shard import MIN_BLOCK_LENGTH, NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.summary import BuildSummary
from realm_jax.corpus.writing import Blocks, write_shards
from realm_jax.indexes.protocol import Rows, config_from
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.build import (
  CompiledTowers,
  SnapshotConfig,
  publish_vectors,
)
from realm_jax.snapshots.store import directory_of
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.atomic import (
  check_target,
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.json_files import write_json
from realm_jax.storage.local_disk import explain_full_disk
from realm_jax.storage.paths import is_remote
from realm_jax.text.salient_spans import tag
from realm_jax.text.sentencepieces import MODEL_FILE, read_sentencepieces
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import (
  read_vocabulary,
  write_vocabulary,
)
from realm_jax.training.config import TrainConfig
from realm_jax.weights import WeightsError
from realm_jax.weights.hugging_face import read_cross_encoder
from realm_jax.weights.mapped_weights import (
  MappedWeights,
  map_weights,
  nested,
)
from realm_jax.weights.name_maps import PARTS, READER, RETRIEVER
from realm_jax.weights.registry import (
  HF_RERANKER,
  T5,
  ImportConfig,
  locate,
  origin,
)
from realm_jax.weights.t5 import read_t5
from realm_jax.weights.unpickling import read_byte_strings

_STEP = 0
# Name of the corpus, part of its block ids.
_NAME = "released"
# Block length that truncates no block.
_UNLIMITED = 1 << 30


def import_weights(config: ImportConfig, output_dir: epath.PathLike) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    config: Weights to import, and options.
    output_dir: MODEL_DIR to make; it appears complete or not at all.

  Returns:
    A report of mapped, unused and randomly initialized parameters.

  Raises:
    WeightsError: The input does not fit, or the output is not empty.
    VocabularyError: The input's vocabulary cannot be used.
    CorpusError, TargetError, DiskFullError: An output cannot be written.
    StoreAccessError: An output is in a bucket that cannot be written.

  Example:
    >>> config = ImportConfig("hf_bert", "bert", pooling="mean")
    >>> import_weights(config, "runs/imported").splitlines()[0]
    'mapped (79 parameters):'
  """
  if config.format == T5:
    return _import_text_reader(config, output_dir)
  if config.format == HF_RERANKER:
    return _import_reranker(config, output_dir)
  _check_corpus_dir(config, output_dir)
  # Corpus and MODEL_DIR appear once both are complete.
  with contextlib.ExitStack() as outputs:
    directory = outputs.enter_context(new_directory(output_dir))
    logging.info("Reading %s", config.input)
    mapped = map_weights(config)
    released = _open_released(config, mapped)
    retriever, reader, words = mapped.model
    write_vocabulary(directory, words)
    run = _NewRun(
      directory,
      nested(mapped.parameters),
      {RETRIEVER: retriever, READER: reader},
      {VOCABULARY: words.digest},
    )
    if released is not None and config.corpus_dir is not None:
      vectors, documents = released
      corpus_dir = outputs.enter_context(writing.new_corpus(config.corpus_dir))
      write_corpus(corpus_dir, documents, words, num_blocks=vectors.shape[0])
      mesh = make_mesh()
      length = min(SnapshotConfig.query_length, retriever.bert.max_positions)
      index = config_from(config.index or "scann", {})
      publish_vectors(
        CompiledTowers(
          SnapshotConfig(retriever, index, query_length=length),
          Corpus.open(corpus_dir),
          mesh=mesh,
        ),
        directory_of(directory),
        jax.device_put(run.params[RETRIEVER], sharding.replicated(mesh)),
        vectors,
        step=_STEP,
      )
    run.write(config)
  lines = [*mapped.lines]
  if mapped.source.block_vectors is not None:
    done = "published as snapshot 0"
    if released is None:
      done = "left out; --corpus_dir imports them with their blocks"
    shape = list(mapped.source.block_vectors.shape)
    lines.append(f"block vectors {shape}: {done}")
  return "\n".join(lines)


def _import_text_reader(
  config: ImportConfig, output_dir: epath.PathLike
) -> str:
  """Writes a MODEL_DIR from a T5 and, with --retriever, a run's retriever."""
  source = locate(config.input, config.revision)
  logging.info("Reading %s", source)
  weights = read_t5(source)
  words = read_sentencepieces(config.vocab or source)
  weights.config.for_vocabulary(words.size)
  with _beside(config, output_dir, (RETRIEVER,)) as run:
    run.params[READER] = {"model": weights.params}
    run.models[READER] = GenerativeReader(weights.config)
    run.digests[READER_VOCABULARY] = words.digest
    (run.directory / MODEL_FILE).write_bytes(words.model)
  return "\n".join(weights.lines)


def _import_reranker(config: ImportConfig, output_dir: epath.PathLike) -> str:
  """Writes a MODEL_DIR from a cross-encoder and a run's components."""
  if config.retriever is None:
    raise WeightsError(
      "a cross-encoder scores what a retriever finds; give the MODEL_DIR of a "
      "run as --retriever"
    )
  source = locate(config.input, config.revision)
  logging.info("Reading %s", source)
  model = read_cross_encoder(source, config.ignore)
  with _beside(config, output_dir, PARTS) as run:
    if run.digests.get(VOCABULARY) != model.vocabulary.digest:
      raise WeightsError(
        f"{source} has another vocabulary than --retriever={config.retriever}; "
        "both read the tokens of one corpus"
      )
    run.params[RERANKER] = model.params
    run.models["components"] = {RERANKER: model.module}
  return "\n".join(model.lines)


class _NewRun(NamedTuple):
  """A MODEL_DIR under construction.

  Attributes:
    directory: Directory to write to.
    params: Parameters by component.
    models: Components by field of `TrainConfig`.
    digests: Digests of vocabularies by key of the item `loop`.
  """

  directory: epath.Path
  params: dict[str, Any]
  models: dict[str, Any]
  digests: dict[str, str]

  def write(self, config: ImportConfig) -> None:
    """Writes the records, and then the checkpoint, which makes it valid."""
    Kept.of(Reference(TrainConfig, kept=self.models)).write(self.directory)
    write_json(self.directory / "imported.json", origin(config))
    # No trainer wrote this checkpoint, so there is no position in the data.
    loop = loop_record([], **self.digests)
    with contextlib.closing(CheckpointStore(self.directory)) as store:
      logging.info("Writing checkpoint %d of %s", _STEP, self.directory)
      store.save(_STEP, {**self.params, "loop": loop})
      store.wait()


@contextlib.contextmanager
def _beside(
  config: ImportConfig, output_dir: epath.PathLike, parts: Sequence[str]
) -> Iterator[_NewRun]:
  """Makes a MODEL_DIR with the `parts` that the run of --retriever has."""
  with contextlib.ExitStack() as outputs:
    directory = outputs.enter_context(new_directory(output_dir))
    new = _NewRun(directory, {}, {}, {})
    if config.retriever is not None:
      require_readable(config.retriever)
      run = epath.Path(config.retriever)
      store, step = locate_checkpoint(run)
      outputs.callback(store.close)
      present = [part for part in parts if part in store.components(step)]
      if RETRIEVER not in present:
        raise WeightsError(f"--retriever={run} has no retriever; name a run")
      new.params.update(store.restore(step, items=tuple(present)))
      record = Kept.find(run)
      fields = {} if record is None else record.config.get("fields", {})
      if not all(part in fields for part in present):
        raise WeightsError(
          f"--retriever={run} keeps no model; name a MODEL_DIR"
        )
      new.models.update({part: fields[part] for part in present})
      pieces = read_vocabulary(run)
      write_vocabulary(directory, pieces)
      new.digests[VOCABULARY] = pieces.digest
      if READER in present and (run / MODEL_FILE).exists():
        words = read_sentencepieces(run)
        (directory / MODEL_FILE).write_bytes(words.model)
        new.digests[READER_VOCABULARY] = words.digest
    yield new
    new.write(config)


@contextlib.contextmanager
def new_directory(output_dir: epath.PathLike) -> Iterator[epath.Path]:
  """Makes a directory to fill, which becomes `output_dir` at the end.

  If the block raises, the directory is removed. On an object store, which
  cannot rename, it is filled in place: the file that makes it valid must be
  written last.

  Raises:
    WeightsError: The directory has files in it.
    TargetError: The path is a file, a disk is mounted there, or another process
      fills it.
    StoreAccessError: The path is in a bucket that cannot be written.
    DiskFullError: The disk is full.
  """
  _require_new("output_dir", output_dir)
  if is_remote(output_dir):
    yield epath.Path(output_dir)
    return
  advice = "free some space, or name another --output_dir"
  with (
    explain_full_disk(output_dir, advice=advice),
    staging_directory(output_dir) as staging,
  ):
    yield epath.Path(staging)
    rename_into_place(staging, output_dir)


def _require_new(flag: str, directory: epath.PathLike) -> None:
  """Checks that the directory of a flag can be made."""
  require_writable(directory)
  path = epath.Path(directory)
  check_target(path)
  if names := sorted(p.name for p in path.iterdir()) if path.exists() else []:
    contents = f"has files in it ({', '.join(names[:3])}, …)"
    if "checkpoints" in names:
      contents = "is a MODEL_DIR that has checkpoints already"
    raise WeightsError(f"{path} {contents}; name a new directory for --{flag}")


# --- Released blocks ----------------------------------------------------------


def _check_corpus_dir(config: ImportConfig, output_dir: epath.PathLike) -> None:
  """Checks that the corpus, if any, can be written outside of the MODEL_DIR."""
  corpus_dir = config.corpus_dir
  if corpus_dir is None:
    return
  # Only local paths have symbolic links.
  corpus, model = (
    PurePath(str(path)) if is_remote(path) else Path(path).resolve()
    for path in (corpus_dir, output_dir)
  )
  if corpus.is_relative_to(model) or model.is_relative_to(corpus):
    raise WeightsError(
      f"--corpus_dir={corpus_dir} and --output_dir={output_dir} are one "
      "directory, or one is in the other; choose separate directories"
    )
  _require_new("corpus_dir", corpus_dir)


def _open_released(
  config: ImportConfig, mapped: MappedWeights
) -> tuple[Rows, Iterator[Document]] | None:
  """Opens the vectors and texts of released blocks; None if not wanted."""
  if config.corpus_dir is None:
    return None
  vectors = mapped.source.block_vectors
  records = config.block_records or mapped.source.block_records
  if vectors is None or records is None:
    raise WeightsError(
      "--corpus_dir is for released blocks with their vectors, and "
      f"{mapped.name} has none (in TF-Hub modules they are the retriever's "
      "encoded/encoded.ckpt); use build_corpus and build_index"
      if vectors is None
      else f"{mapped.name} has the vectors of blocks without their texts; pass "
      "--block_records, blocks.tfr or block_records.npy of the same release"
    )
  num_blocks = vectors.shape[0]
  titles: Iterable[bytes] = itertools.repeat(b"", num_blocks)
  if config.block_titles is not None:
    titles = _open_texts(config.block_titles)
  return vectors, blocks_of(num_blocks, _open_texts(records), titles)


def _open_texts(path: epath.PathLike) -> Iterable[bytes]:
  """Opens the texts of a numpy array of bytes (`.npy`) or of TFRecords."""
  path = epath.Path(path)
  if not path.is_file():
    raise WeightsError(f"no file of blocks at {path}")
  if path.suffix == ".npy":
    return read_byte_strings(path)
  # Imports TensorFlow, of the extra `train`.
  from realm_jax.weights.google import read_records

  return read_records(path)


def blocks_of(
  num_blocks: int, records: Iterable[bytes], titles: Iterable[bytes]
) -> Iterator[Document]:
  """Yields a document for each record, and checks their number.

  Each block is a document whose id is its row, so that every import of the same
  records has the same block ids.

  Args:
    num_blocks: Number of blocks.
    records, titles: Texts and titles of the blocks, in UTF-8.

  Raises:
    WeightsError: There are more or fewer records or titles than blocks, or one
      is not UTF-8.
  """
  rows = itertools.zip_longest(range(num_blocks), records, titles)
  for number, (row, body, title) in enumerate(rows):
    if row is None or body is None or title is None:
      raise WeightsError(
        f"{num_blocks} vectors, and more or fewer records or titles: row "
        f"{number} does not have all; want one of each in the same order: are "
        "all files from one release?"
      )
    try:
      text, name = body.decode(), title.decode()
    except UnicodeDecodeError as error:
      raise WeightsError(
        f"record or title {number} is not UTF-8 (byte {error.start} of "
        f"{len(error.object)}); want texts in UTF-8"
      ) from None
    yield Document(str(number), name, text, is_block=True)


def write_corpus(
  staging: Path,
  documents: Iterable[Document],
  vocabulary: BertVocabulary,
  *,
  num_blocks: int,
) -> None:
  """Writes documents that are blocks, in order, to a `writing.new_corpus`."""
  builder = BlockBuilder(
    vocabulary=vocabulary,
    corpus_name=_NAME,
    block_length=_UNLIMITED,
    tagger=tag,
  )
  summary, longest = BuildSummary(), MIN_BLOCK_LENGTH
  with Progress("blocks written", total=num_blocks) as progress:

    def built_blocks() -> Iterator[Blocks]:
      nonlocal longest
      for blocks in builder.blocks(documents, summary):
        sizes = np.diff(blocks["token_ids_offsets"])
        longest = max(longest, NUM_SPECIAL_TOKENS + int(sizes.max()))
        progress.advance(len(sizes))
        yield blocks

    shards = write_shards(staging, built_blocks())
    writing.finish(
      staging,
      name=_NAME,
      vocabulary=vocabulary,
      block_length=longest,
      summary=vars(summary),
      shards=shards,
    )
