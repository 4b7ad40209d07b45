"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
MODEL_DIR/generations/0…  the vectors of the released blocks, if there are any
CORPUS_DIR                the corpus of these blocks
"""

import functools
from pathlib import PurePath, PurePosixPath

from etils import epath

from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.released_index import (
  BlockOptions,
  ReleasedIndex,
  import_index,
  open_records,
)
from realm_jax.conversion.mapping import Allowance, show_shape
from realm_jax.conversion.model_dir import Publish, write_model_dir
from realm_jax.conversion.output_directory import check_new
from realm_jax.conversion.plan import RETRIEVER, ImportPlan
from realm_jax.conversion.planning import ImportSource, plan_import
from realm_jax.corpus.building.directory_writer import (
  check_target as check_corpus_target,
)
from realm_jax.corpus.shards import format as shard_format
from realm_jax.files.remote import is_remote
from realm_jax.files.whole_directory import real_path
from realm_jax.indexes.registry import config_from


def import_weights(
  source: ImportSource,
  output_dir: epath.PathLike,
  *,
  towers: TowerOptions | None = None,
  blocks: BlockOptions | None = None,
  allowance: Allowance | None = None,
  seed: int = 0,
) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    source: Weights to import.
    output_dir: MODEL_DIR to make; it appears complete or not at all.
    towers: How vectors are made, where the input leaves it open.
    blocks: Blocks that were released with the weights, and the corpus that
      they become. Their vectors become generation 0.
    allowance: Misfits that the user accepts.
    seed: Seed of parameters that start from random values.

  Returns:
    Lines that say what was mapped, left out and randomly initialized.

  Raises:
    ConversionError: If the input does not fit, or the output is not empty.
    VocabularyError: If the input's vocabulary cannot be used.
    CorpusError, TargetError, DiskFullError: If an output cannot be written.
  """
  check_new(output_dir)
  blocks = blocks or BlockOptions()
  if blocks.corpus_dir is not None:
    _check_corpus_dir(blocks.corpus_dir, output_dir)
  plan = plan_import(source, towers or TowerOptions())
  report = write_model_dir(
    plan,
    output_dir,
    allowance=allowance,
    seed=seed,
    publish=_publisher(plan, blocks),
  )
  lines = [report.table(), *plan.notes]
  if plan.block_vectors is not None:
    shape = show_shape(tuple(plan.block_vectors.shape))
    lines.append(
      f"block vectors {shape}: published as generation 0"
      if blocks.corpus_dir is not None
      else f"block vectors {shape}: left out; --corpus_dir imports them with "
      "their blocks"
    )
  return "\n".join(lines)


def _check_corpus_dir(
  corpus_dir: epath.PathLike, output_dir: epath.PathLike
) -> None:
  """Checks that a new corpus can be written beside the MODEL_DIR."""
  path = epath.Path(corpus_dir)
  one, other = _resolved(path), _resolved(epath.Path(output_dir))
  if one == other or one in other.parents or other in one.parents:
    raise ConversionError(
      f"--corpus_dir={path} and --output_dir={output_dir} are one directory, "
      "or one is in the other; each appears whole, so name two side by side"
    )
  if (path / shard_format.MANIFEST_NAME).exists():
    raise ConversionError(
      f"--corpus_dir={path} holds a corpus already; name a new directory, or "
      "remove it first"
    )
  check_corpus_target(path, overwrite=False)


def _resolved(path: epath.Path) -> PurePath:
  return PurePosixPath(str(path)) if is_remote(path) else real_path(path)


def _publisher(plan: ImportPlan, blocks: BlockOptions) -> Publish | None:
  """Returns a function that publishes the released blocks, if it is wanted."""
  if blocks.corpus_dir is None:
    return None
  if RETRIEVER not in plan.parts or plan.block_vectors is None:
    raise ConversionError(
      f"--corpus_dir is for released blocks with their vectors, and "
      f"{plan.source} has none (in TF-Hub modules they are the retriever's "
      "encoded/encoded.ckpt); leave it out, and use build_corpus and "
      "build_index"
    )
  records = blocks.block_records or plan.block_records
  if records is None:
    raise ConversionError(
      f"{plan.source} has the vectors of blocks without their texts; pass "
      "--block_records, blocks.tfr or block_records.npy of the same release"
    )
  titles = blocks.block_titles
  released = ReleasedIndex(
    open_records(records),
    plan.block_vectors,
    titles=None if titles is None else open_records(titles),
  )
  released.check(plan.retriever)
  return functools.partial(
    import_index,
    released,
    corpus_dir=blocks.corpus_dir,
    index=config_from(blocks.index or "scann", {}),
    block_length=blocks.block_length,
  )
