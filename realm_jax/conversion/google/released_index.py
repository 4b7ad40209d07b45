"""A released index as a corpus and a generation.

Released REALM is open-domain as it stands because its blocks and their vectors
were published with it: texts in `block_records.npy` or `blocks.tfr`, vectors
in `block_emb`. They become CORPUS_DIR and MODEL_DIR/generations/00000000, so
that nothing is embedded again.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import jax
from absl import logging
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import BlockRecords
from realm_jax.conversion.google.released_corpus import write_released_corpus
from realm_jax.conversion.google.tfrecords import TfRecords
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.store import Corpus
from realm_jax.files.remote import is_remote
from realm_jax.files.whole_directory import real_path
from realm_jax.generations.build.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import Manifest
from realm_jax.generations.store.publisher import publish
from realm_jax.indexes.protocol import IndexConfig, Rows
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import WordpieceVocabulary

_STEP = 0


@dataclasses.dataclass(frozen=True)
class ReleasedIndex:
  """Blocks and their vectors, in one order.

  Attributes:
    records: texts, UTF-8: a `BlockRecords` or `TfRecords`.
    vectors: [N, d], read a slice at a time.
    titles: one for each record; None where none were published.
  """

  records: Iterable[bytes]
  vectors: Rows
  titles: Iterable[bytes] | None = None

  def check(self, retriever: Retriever) -> None:
    """Refuses at once what reading the records could only show later.

    Raises:
      ConversionError: the vectors are not the retriever's, or not as many as
        the records.
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
  """The records of a file: a numpy array of bytes (`.npy`), or TFRecords.

  Raises:
    ConversionError: it is neither, or not there.
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
  params: Any,
  vocabulary: WordpieceVocabulary,
  index: IndexConfig,
  config: EmbeddingConfig | None = None,
  block_length: int | None = None,
  tagger: Tagger | None = tag,
) -> Iterator[Manifest]:
  """Writes the corpus, and publishes the generation of checkpoint 0.

  Where that fails, or the context is left by an error, the corpus is removed,
  so that the same import can be run again.

  Args:
    released: what was published.
    model_dir: where the generation goes.
    corpus_dir: where the corpus goes; it appears complete or not at all.
    retriever: the imported towers.
    params: their parameters, of checkpoint 0.
    vocabulary: the model's.
    index: the search structure to build.
    config: the stored dtype, and how recall is measured.
    block_length: of the corpus; None fits the longest block: see
      `write_released_corpus`.
    tagger: finds salient spans; with None there are none.

  Yields:
    The manifest of the generation.

  Raises:
    ConversionError: records, titles and vectors do not agree; nothing has been
      written then.
    CorpusError, DiskFullError: as their writers raise them.
    GenerationError: a vector is not finite.
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
    "wrote %d blocks of at most %d wordpieces to %s",
    made.summary.blocks,
    made.block_length,
    corpus_dir,
  )
  try:
    if config is None:
      longest = retriever.bert.max_positions
      config = EmbeddingConfig(
        query_length=min(EmbeddingConfig.query_length, longest)
      )
    mesh = make_mesh()
    artifacts = ArtifactWriter(
      Corpus.open(corpus_dir), retriever, index=index, config=config, mesh=mesh
    )
    generations_dir = epath.Path(model_dir) / layout.FOLDER
    params = jax.device_put(params, rules.replicated(mesh))

    def write(directory: Path) -> Manifest:
      stored = artifacts.store(directory, released.vectors, step=_STEP)
      return artifacts.write(
        directory, step=_STEP, params=params, stored=stored
      )

    publish(
      generations_dir,
      _STEP,
      write,
      # Another's vectors may stand there.
      replaces=lambda manifest: True,
    )
    yield manifests.read(layout.path_of(generations_dir, _STEP))
  except BaseException:
    logging.info("removing %s, whose generation was not written", corpus_dir)
    _remove_corpus(corpus_dir)
    raise


def _remove_corpus(corpus_dir: epath.PathLike) -> None:
  directory = epath.Path(
    corpus_dir if is_remote(corpus_dir) else real_path(corpus_dir)
  )
  # First what makes it a corpus, wherever removal may stop.
  (directory / shard_format.MANIFEST_NAME).unlink(missing_ok=True)
  directory.rmtree(missing_ok=True)
