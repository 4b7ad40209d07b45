"""Released blocks and their vectors, as a corpus and a generation.

Released REALM answers open-domain questions as it is because its blocks and
their vectors were published with it: texts in `block_records.npy` or
`blocks.tfr`, vectors in `block_emb`. They become CORPUS_DIR and
MODEL_DIR/generations/00000000, so that nothing is embedded again.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus import writing
from realm_jax.corpus.block_builder import BlockBuilder
from realm_jax.corpus.documents import Document
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.shard import MIN_BLOCK_LENGTH, NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.summary import BuildSummary
from realm_jax.corpus.writing import Blocks, write_shards
from realm_jax.generations.build import (
  Builder,
  GenerationConfig,
  publish_vectors,
)
from realm_jax.generations.store import directory_of
from realm_jax.indexes.protocol import Rows, config_from
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.storage.paths import is_remote
from realm_jax.text.salient_spans import tag
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import WeightsError
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import BoundModel
from realm_jax.weights.plan import Plan
from realm_jax.weights.unpickling import read_byte_strings

# Name of the corpus, part of its block ids.
_NAME = "released"
# Block length that cuts no block.
_UNLIMITED = 1 << 30


class ReleasedBlocks(NamedTuple):
  """Blocks and their vectors, in the same order, and the corpus to make.

  Attributes:
    corpus_dir: Directory of the corpus.
    vectors: Vectors, [N, d], which are read a slice at a time.
    records: Texts in UTF-8.
    titles: Titles in UTF-8; None leaves them empty.
  """

  corpus_dir: epath.PathLike
  vectors: Rows
  records: Iterable[bytes]
  titles: Iterable[bytes] | None = None


def check_corpus_dir(config: ImportConfig, output_dir: epath.PathLike) -> None:
  """Checks that the corpus, if any, can be written beside the MODEL_DIR.

  Raises:
    WeightsError: It cannot.
    CorpusError, TargetError: It has other files, or is no directory.
  """
  corpus_dir = config.corpus_dir
  if corpus_dir is None:
    return
  # Only local paths have symbolic links.
  one, other = (
    PurePath(str(path)) if is_remote(path) else Path(path).resolve()
    for path in (corpus_dir, output_dir)
  )
  if one.is_relative_to(other) or other.is_relative_to(one):
    raise WeightsError(
      f"--corpus_dir={corpus_dir} and --output_dir={output_dir} are one "
      "directory, or one is in the other; each appears whole, so name two side "
      "by side"
    )
  if epath.Path(corpus_dir, MANIFEST_NAME).exists():
    raise WeightsError(
      f"--corpus_dir={corpus_dir} holds a corpus already; name a new "
      "directory, or remove it first"
    )
  writing.check_target(corpus_dir, overwrite=False)


def open_released(config: ImportConfig, plan: Plan) -> ReleasedBlocks | None:
  """Opens the blocks of a plan; returns None if they are not wanted.

  Raises:
    WeightsError: There are none, or they are not of the plan's model.
  """
  if config.corpus_dir is None:
    return None
  vectors = plan.source.block_vectors
  records = config.block_records or plan.source.block_records
  if vectors is None or records is None:
    raise WeightsError(
      "--corpus_dir is for released blocks with their vectors, and "
      f"{plan.name} has none (in TF-Hub modules they are the retriever's "
      "encoded/encoded.ckpt); use build_corpus and build_index"
      if vectors is None
      else f"{plan.name} has the vectors of blocks without their texts; pass "
      "--block_records, blocks.tfr or block_records.npy of the same release"
    )
  dim = plan.model.retriever.vector_size
  if len(vectors.shape) != 2 or vectors.shape[1] != dim:
    raise WeightsError(
      f"block vectors of shape {[*vectors.shape]} for a retriever of {dim} "
      f"dimensions; want [blocks, {dim}]: are they of this model?"
    )
  titles = config.block_titles
  return ReleasedBlocks(
    config.corpus_dir,
    vectors,
    _open(records),
    None if titles is None else _open(titles),
  )


def _open(path: epath.PathLike) -> Iterable[bytes]:
  """Opens the texts of a numpy array of bytes (`.npy`) or of TFRecords."""
  # It imports TensorFlow.
  from realm_jax.weights.google import read_records

  path = epath.Path(path)
  if not path.is_file():
    raise WeightsError(f"no file of blocks at {path}")
  return (
    read_byte_strings(path) if path.suffix == ".npy" else read_records(path)
  )


def publish(
  released: ReleasedBlocks,
  model_dir: epath.PathLike,
  model: BoundModel,
  params: Params,
  *,
  index: str,
) -> None:
  """Publishes the vectors as generation 0, once their corpus is written.

  Args:
    released: Blocks and their vectors.
    model_dir: Directory of the generation.
    model: Model whose retriever made the vectors.
    params: Parameters of its towers.
    index: Kind of index for the vectors.

  Raises:
    GenerationError: A vector is not finite.
    DiskFullError: The generation cannot be written.
  """
  retriever = model.retriever
  mesh = make_mesh()
  length = min(GenerationConfig.query_length, retriever.bert.max_positions)
  config = GenerationConfig(
    retriever, config_from(index, {}), query_length=length
  )
  builder = Builder(config, Corpus.open(released.corpus_dir), mesh=mesh)
  replicated = jax.device_put(params, sharding.replicated(mesh))
  publish_vectors(
    builder, directory_of(model_dir), replicated, released.vectors
  )


def remove_corpus(directory: epath.PathLike) -> None:
  """Removes a corpus, so that the same import can be run again."""
  logging.info("Removing %s, whose generation was not written", directory)
  corpus = epath.Path(directory)
  if not is_remote(directory):
    corpus = epath.Path(Path(directory).resolve())
  # The manifest first: without it, what remains is no corpus.
  (corpus / MANIFEST_NAME).unlink(missing_ok=True)
  corpus.rmtree(missing_ok=True)


def write_corpus(
  released: ReleasedBlocks, vocabulary: WordpieceVocabulary
) -> None:
  """Writes a corpus directory with the records as its blocks, in order.

  Each block is a document of its own and is named by its row, so that every
  import of the same records gives the same block ids.

  Raises:
    WeightsError: There are more or fewer records or titles than vectors, or one
      is not UTF-8.
    CorpusError: The directory cannot be written.
  """
  num_blocks = released.vectors.shape[0]
  with (
    writing.new_corpus(released.corpus_dir) as staging,
    Progress("blocks written", total=num_blocks) as progress,
  ):
    builder = BlockBuilder(
      vocabulary=vocabulary,
      corpus_name=_NAME,
      block_length=_UNLIMITED,
      tagger=tag,
    )
    summary, longest = BuildSummary(), MIN_BLOCK_LENGTH

    def built_blocks() -> Iterator[Blocks]:
      nonlocal longest
      for blocks in builder.blocks(_documents(released), summary):
        sizes = np.diff(blocks["token_ids_offsets"])
        longest = max(longest, NUM_SPECIAL_TOKENS + int(sizes.max()))
        progress.advance(len(sizes))
        yield blocks

    shards = write_shards(
      staging, built_blocks(), vocab_size=len(vocabulary.pieces)
    )
    writing.finish(
      staging,
      name=_NAME,
      pieces=vocabulary.pieces,
      block_length=longest,
      summary=vars(summary),
      shards=shards,
    )


def _documents(released: ReleasedBlocks) -> Iterator[Document]:
  """Yields a document for each record, and checks how many there are."""
  num_blocks = released.vectors.shape[0]
  titles = released.titles or itertools.repeat(b"", num_blocks)
  rows = itertools.zip_longest(range(num_blocks), released.records, titles)
  for number, (row, body, title) in enumerate(rows):
    if row is None or body is None or title is None:
      raise WeightsError(
        f"{num_blocks} vectors, and more or fewer records or titles: row "
        f"{number} does not have all; want one of each in the same order: are "
        "all of one release?"
      )
    try:
      text, name = body.decode(), title.decode()
    except UnicodeDecodeError as error:
      raise WeightsError(
        f"record or title {number} is not UTF-8 (byte {error.start} of "
        f"{len(error.object)}); want texts"
      ) from None
    yield Document(str(number), name, text, is_block=True)
