"""Released blocks and their vectors, as a corpus and a generation.

Released REALM answers open-domain questions as it is because its blocks and
their vectors were published with it: texts in `block_records.npy` or
`blocks.tfr`, vectors in `block_emb`. They become CORPUS_DIR and
MODEL_DIR/generations/00000000, so that nothing is embedded again.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path, PurePath, PurePosixPath

import jax
from absl import logging
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import TfRecords
from realm_jax.conversion.google.released_corpus import write_released_corpus
from realm_jax.conversion.options import BlockOptions
from realm_jax.conversion.parameters import BoundModel
from realm_jax.conversion.pickles import read_byte_strings
from realm_jax.conversion.planning import ImportPlan
from realm_jax.corpus.directory_writer import check_target
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.store import Corpus
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.whole.whole_directory import real_path
from realm_jax.generations.building.artifacts import (
  ArtifactWriter,
  EmbeddingConfig,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store.manifest import Manifest
from realm_jax.generations.store.publisher import publish
from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.registry import config_from
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh

_STEP = 0


@dataclasses.dataclass(frozen=True)
class ReleasedIndex:
  """Blocks and their vectors, in the same order, and what they become.

  Records and titles are texts in UTF-8; the
  vectors, [N, d], are read a slice at a time.
  """

  corpus_dir: epath.PathLike
  options: BlockOptions
  records: Iterable[bytes]
  vectors: Rows
  titles: Iterable[bytes] | None = None

  def check(self, retriever: Retriever) -> None:
    """Checks shapes and counts before the records are read."""
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


def check_corpus_dir(
  corpus_dir: epath.PathLike | None, output_dir: epath.PathLike
) -> None:
  """Checks that a new corpus, if any, can be written beside the MODEL_DIR."""
  if corpus_dir is None:
    return
  one, other = _resolved(corpus_dir), _resolved(output_dir)
  if one == other or one in other.parents or other in one.parents:
    raise ConversionError(
      f"--corpus_dir={corpus_dir} and --output_dir={output_dir} are one "
      "directory, or one is in the other; each appears whole, so name two side "
      "by side"
    )
  if epath.Path(corpus_dir, MANIFEST_NAME).exists():
    raise ConversionError(
      f"--corpus_dir={corpus_dir} holds a corpus already; name a new "
      "directory, or remove it first"
    )
  check_target(corpus_dir, overwrite=False)


def _resolved(path: epath.PathLike) -> PurePath:
  """Returns a path without symbolic links, which only local ones have."""
  return PurePosixPath(str(path)) if is_remote(path) else real_path(path)


def open_released(
  plan: ImportPlan, options: BlockOptions
) -> ReleasedIndex | None:
  """Opens the blocks of a plan; returns None if they are not wanted."""
  if options.corpus_dir is None:
    return None
  if plan.block_vectors is None:
    raise ConversionError(
      f"--corpus_dir is for released blocks with their vectors, and "
      f"{plan.source} has none (in TF-Hub modules they are the retriever's "
      "encoded/encoded.ckpt); leave it out, and use build_corpus and "
      "build_index"
    )
  records = options.block_records or plan.block_records
  if records is None:
    raise ConversionError(
      f"{plan.source} has the vectors of blocks without their texts; pass "
      "--block_records, blocks.tfr or block_records.npy of the same release"
    )
  titles = options.block_titles
  released = ReleasedIndex(
    options.corpus_dir,
    options,
    _open_records(records),
    plan.block_vectors,
    None if titles is None else _open_records(titles),
  )
  released.check(plan.retriever)
  return released


def _open_records(path: epath.PathLike) -> Iterable[bytes]:
  """Opens the records of a numpy array of bytes (`.npy`) or of TFRecords."""
  path = epath.Path(path)
  if not path.is_file():
    raise ConversionError(f"no file of blocks at {path}")
  return read_byte_strings(path) if path.suffix == ".npy" else TfRecords(path)


@contextlib.contextmanager
def import_index(
  released: ReleasedIndex,
  model_dir: epath.PathLike,
  model: BoundModel,
  params: Params,
) -> Iterator[None]:
  """Writes the corpus, and publishes the generation of checkpoint 0.

  If that fails, or the block of the context raises, the corpus is removed, so
  that the same import can be run again. `params` are those of the towers.

  Raises:
    ConversionError: If records, titles and vectors do not agree; nothing has
      been written then.
    CorpusError, DiskFullError: If an output cannot be written.
    GenerationError: If a vector is not finite.
  """
  corpus_dir, retriever = released.corpus_dir, model.retriever
  released.check(retriever)
  write_released_corpus(
    released.records,
    corpus_dir,
    vocabulary=model.vocabulary,
    num_blocks=released.vectors.shape[0],
    titles=released.titles,
    block_length=released.options.block_length,
  )
  try:
    longest = retriever.bert.max_positions
    mesh = make_mesh()
    artifacts = ArtifactWriter(
      Corpus.open(corpus_dir),
      retriever,
      index=config_from(released.options.index or "scann", {}),
      config=EmbeddingConfig(
        query_length=min(EmbeddingConfig.query_length, longest)
      ),
      mesh=mesh,
    )
    replicated = jax.device_put(params, sharding.replicated(mesh))

    def write(directory: Path) -> Manifest:
      stored = artifacts.store(directory, released.vectors, step=_STEP)
      return artifacts.write(
        directory, step=_STEP, params=replicated, stored=stored
      )

    publish(epath.Path(model_dir) / layout.FOLDER, _STEP, write)
    yield
  except BaseException:
    logging.info("Removing %s, whose generation was not written", corpus_dir)
    remote = is_remote(corpus_dir)
    directory = epath.Path(corpus_dir if remote else real_path(corpus_dir))
    # The manifest first: without it, what remains is no corpus.
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    directory.rmtree(missing_ok=True)
    raise
