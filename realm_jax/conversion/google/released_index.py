"""Released blocks and their vectors, as a corpus and a generation.

Released REALM answers open-domain questions as it is because its blocks and
their vectors were published with it: texts in `block_records.npy` or
`blocks.tfr`, vectors in `block_emb`. They become CORPUS_DIR and
MODEL_DIR/generations/00000000, so that nothing is embedded again.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path

import jax
from absl import logging
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import BlockRecords
from realm_jax.conversion.google.released_corpus import (
  require_block_length,
  write_released_corpus,
)
from realm_jax.conversion.google.tfrecords import TfRecords
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.store import Corpus
from realm_jax.files.remote import is_remote
from realm_jax.files.whole_directory import real_path
from realm_jax.generations.building.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import Manifest
from realm_jax.generations.store.publisher import publish
from realm_jax.indexes.protocol import IndexConfig, Rows
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import WordpieceVocabulary

_STEP = 0


@dataclasses.dataclass(frozen=True)
class BlockOptions:
  """Which released blocks to import, and how.

  Attributes:
    corpus_dir: Corpus to make of the blocks; None imports no blocks.
    block_records: File of the blocks' texts, `.npy` or TFRecords; None takes
      the input's own.
    block_titles: TFRecords of the blocks' titles; None leaves them empty.
    block_length: Maximum wordpieces of a block; None fits all.
    index: Kind of index for the vectors; None takes `scann`.
  """

  corpus_dir: epath.PathLike | None = None
  block_records: epath.PathLike | None = None
  block_titles: epath.PathLike | None = None
  block_length: int | None = None
  index: str | None = None

  def __post_init__(self) -> None:
    require_block_length(self.block_length)
    given = [
      f"--{name}"
      for name, value in dataclasses.asdict(self).items()
      if value is not None
    ]
    if given and self.corpus_dir is None:
      raise ConversionError(
        f"{', '.join(given)} without --corpus_dir, which names the corpus to "
        "make of the released blocks; give it, or leave these out"
      )


@dataclasses.dataclass(frozen=True)
class ReleasedIndex:
  """Blocks and their vectors, in the same order.

  Attributes:
    records: Texts in UTF-8: a `BlockRecords` or `TfRecords`.
    vectors: Vectors [N, d], which are read a slice at a time.
    titles: Title of each record; None if none were published.
  """

  records: Iterable[bytes]
  vectors: Rows
  titles: Iterable[bytes] | None = None

  def check(self, retriever: Retriever) -> None:
    """Checks shapes and counts before the records are read.

    Raises:
      ConversionError: If the vectors do not fit the retriever, or their number
        is not that of the records.
    """
    shape = tuple(self.vectors.shape)
    if len(shape) != 2 or shape[1] != retriever.vector_size:
      raise ConversionError(
        f"block vectors of shape {list(shape)} for a retriever of "
        f"{retriever.vector_size} dimensions; want [blocks, "
        f"{retriever.vector_size}]: are they of this model?"
      )
    for name, texts in (("records", self.records), ("titles", self.titles)):
      if isinstance(texts, Sized) and len(texts) != shape[0]:
        raise ConversionError(
          f"{shape[0]} block vectors, and {len(texts)} {name}; want one for "
          "each, in the same order: are both of one release?"
        )


def open_records(path: epath.PathLike) -> Iterable[bytes]:
  """Opens the records of a numpy array of bytes (`.npy`) or of TFRecords.

  Raises:
    ConversionError: If the file is absent, or is neither.
  """
  path = epath.Path(path)
  if not path.is_file():
    raise ConversionError(f"no file of blocks at {path}")
  return BlockRecords(path) if path.suffix == ".npy" else TfRecords(path)


@contextlib.contextmanager
def import_index(
  released: ReleasedIndex,
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  params: Params,
  vocabulary: WordpieceVocabulary,
  index: IndexConfig,
  config: EmbeddingConfig | None = None,
  block_length: int | None = None,
  tagger: Tagger | None = tag,
) -> Iterator[Manifest]:
  """Writes the corpus, and publishes the generation of checkpoint 0.

  If that fails, or the block of the context raises, the corpus is removed, so
  that the same import can be run again.

  Args:
    released: Blocks and vectors.
    model_dir: MODEL_DIR of the generation.
    corpus_dir: Corpus to make; it appears complete or not at all.
    retriever: Imported towers.
    params: Parameters of the towers in checkpoint 0.
    vocabulary: Vocabulary of the model.
    index: Configuration of the index to build.
    config: Type in which vectors are stored, and how recall is measured.
    block_length: Maximum wordpieces of a block; None fits the longest: see
      `write_released_corpus`.
    tagger: Function that finds salient spans; None finds none.

  Yields:
    The manifest of the generation.

  Raises:
    ConversionError: If records, titles and vectors do not agree; nothing has
      been written then.
    CorpusError, DiskFullError: If an output cannot be written.
    GenerationError: If a vector is not finite.
  """
  released.check(retriever)
  made = write_released_corpus(
    released.records,
    corpus_dir,
    vocabulary=vocabulary,
    num_blocks=released.vectors.shape[0],
    titles=released.titles,
    block_length=block_length,
    tagger=tagger,
  )
  logging.info(
    "Wrote %d blocks of at most %d wordpieces to %s",
    made.summary.blocks,
    made.block_length,
    corpus_dir,
  )
  try:
    mesh = make_mesh()
    artifacts = ArtifactWriter(
      Corpus.open(corpus_dir),
      retriever,
      index=index,
      config=config or _embedding_config(retriever),
      mesh=mesh,
    )
    yield _publish(
      artifacts,
      released.vectors,
      jax.device_put(params, rules.replicated(mesh)),
      epath.Path(model_dir) / layout.FOLDER,
    )
  except BaseException:
    logging.info("Removing %s, whose generation was not written", corpus_dir)
    _remove_corpus(corpus_dir)
    raise


def _embedding_config(retriever: Retriever) -> EmbeddingConfig:
  longest = retriever.bert.max_positions
  return EmbeddingConfig(
    query_length=min(EmbeddingConfig.query_length, longest)
  )


def _publish(
  artifacts: ArtifactWriter,
  vectors: Rows,
  params: Params,
  generations_dir: epath.Path,
) -> Manifest:
  def write(directory: Path) -> Manifest:
    stored = artifacts.store(directory, vectors, step=_STEP)
    return artifacts.write(directory, step=_STEP, params=params, stored=stored)

  # A generation that is there already may have other vectors.
  publish(generations_dir, _STEP, write, replaces=lambda manifest: True)
  return manifests.read(layout.path_of(generations_dir, _STEP))


def _remove_corpus(corpus_dir: epath.PathLike) -> None:
  remote = is_remote(corpus_dir)
  directory = epath.Path(corpus_dir if remote else real_path(corpus_dir))
  # The manifest first: without it, what remains is no corpus.
  (directory / shard_format.MANIFEST_NAME).unlink(missing_ok=True)
  directory.rmtree(missing_ok=True)
