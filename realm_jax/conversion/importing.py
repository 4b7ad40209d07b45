"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
MODEL_DIR/generations/0…  where blocks and their vectors were released too,
CORPUS_DIR                … and the corpus of these blocks
"""

import functools
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from etils import epath

from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.released_corpus import require_block_length
from realm_jax.conversion.google.released_index import (
  ReleasedIndex,
  import_index,
  open_records,
)
from realm_jax.conversion.mapping import Allowance, show_shape
from realm_jax.conversion.model_dir import write_model_dir
from realm_jax.conversion.plan import RETRIEVER, ImportPlan
from realm_jax.conversion.planning import plan_import
from realm_jax.conversion.whole_directory import check_target
from realm_jax.corpus.build.directory_writer import (
  check_target as check_corpus_target,
)
from realm_jax.corpus.shards import format as shard_format
from realm_jax.files.remote import is_remote
from realm_jax.files.whole_directory import real_path
from realm_jax.indexes.registry import config_from

_INDEX = "scann"


def import_weights(
  kind: str,
  input_dir: str,
  output_dir: epath.PathLike,
  *,
  block_input: str | None = None,
  parts: Sequence[str] | None = None,
  pooling: str | None = None,
  projection_size: int | None = None,
  normalize: bool | None = None,
  score_scale: float = 1.0,
  query_prefix: str | None = None,
  block_prefix: str | None = None,
  title_separator: bool | None = None,
  token_types: bool | None = None,
  separate_towers: bool = False,
  tensor_prefix: str | None = None,
  vocab: str | None = None,
  corpus_dir: epath.PathLike | None = None,
  block_records: str | None = None,
  block_titles: str | None = None,
  block_length: int | None = None,
  index: str | None = None,
  allow_left: Sequence[str] = (),
  allow_fresh: Sequence[str] = (),
  seed: int = 0,
) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    kind: one of `planning.KINDS`.
    input_dir: the local directory to read; of TensorFlow's kinds, or a
      checkpoint's prefix.
    output_dir: the MODEL_DIR to make; appears complete or not at all.
    block_input: a second directory, for the block tower.
    parts: `retriever`, `reader` or both; None takes what the input has.
    pooling: `pooler`, `cls` or `mean`; None takes what the input says, …
    projection_size: … None adds no projection, …
    normalize: … None takes what the input says, …
    score_scale: … multiplies inner products: see `Retriever`, …
    query_prefix: … text before each query, …
    block_prefix: … and each block, …
    title_separator: … whether a [SEP] follows the title, …
    token_types: … and whether what comes after it has type 1.
    separate_towers: start two towers from the same weights.
    tensor_prefix: what precedes `embeddings.…` in the names of tensors.
    vocab: the vocabulary file, where the input of `tf_realm` has none.
    corpus_dir: where the blocks go that were released with the weights; their
      vectors become generation 0. None leaves both out.
    block_records: the file of the blocks' texts, `.npy` or TFRecords; None
      takes the input's own.
    block_titles: TFRecords of the blocks' titles; None leaves them empty.
    block_length: the most wordpieces of a block; None fits all.
    index: the kind of search structure for the generation; None is `scann`.
    allow_left: regular expressions for tensors that may stay unused.
    allow_fresh: and for parameters that may start afresh.
    seed: of what starts afresh.

  Returns:
    What was mapped, left and initialised, in lines.

  Raises:
    ConversionError: the input does not fit, or the output is not empty.
    VocabularyError: the input's vocabulary cannot be used.
    CorpusError: `corpus_dir` cannot be written.
  """
  check_target(output_dir)
  if corpus_dir is None:
    _refuse_without_corpus(
      block_records=block_records,
      block_titles=block_titles,
      block_length=block_length,
      index=index,
    )
  else:
    _check_corpus_dir(corpus_dir, output_dir)
    require_block_length(block_length)
  allowance = Allowance(tuple(allow_left), tuple(allow_fresh))
  options = TowerOptions(
    pooling=pooling,
    projection_size=projection_size,
    normalize=normalize,
    score_scale=score_scale,
    query_prefix=query_prefix,
    block_prefix=block_prefix,
    title_separator=title_separator,
    token_types=token_types,
    separate_towers=separate_towers,
  )
  plan = plan_import(
    kind,
    Path(input_dir),
    options,
    block_input=None if block_input is None else Path(block_input),
    parts=None if parts is None else tuple(parts),
    tensor_prefix=tensor_prefix,
    vocab=None if vocab is None else Path(vocab),
  )
  publish = None
  if corpus_dir is not None:
    released = _released(plan, block_records, block_titles)
    released.check(plan.retriever)
    publish = functools.partial(
      import_index,
      released,
      corpus_dir=corpus_dir,
      index=config_from(index or _INDEX, {}),
      block_length=block_length,
    )
  report = write_model_dir(
    plan, output_dir, allowance=allowance, seed=seed, publish=publish
  )
  lines = [report.table(), *plan.notes]
  if plan.block_vectors is not None:
    shape = show_shape(tuple(plan.block_vectors.shape))
    lines.append(
      f"block vectors {shape}: handed to the generation"
      if corpus_dir is not None
      else f"block vectors {shape}: left; --corpus_dir imports them with their "
      "blocks"
    )
  return "\n".join(lines)


def _refuse_without_corpus(**options: Any) -> None:
  given = [f"--{name}" for name, value in options.items() if value is not None]
  if given:
    raise ConversionError(
      f"{', '.join(given)} without --corpus_dir: the released blocks and their "
      "vectors are imported where it says; give it, or leave these out"
    )


def _check_corpus_dir(
  corpus_dir: epath.PathLike, output_dir: epath.PathLike
) -> None:
  """Refuses a place that the corpus cannot have."""
  path = epath.Path(corpus_dir)
  one, other = _real(path), _real(epath.Path(output_dir))
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


def _real(path: epath.Path) -> PurePath:
  if is_remote(path):
    return PurePosixPath(str(path))
  return real_path(path)


def _released(
  plan: ImportPlan, block_records: str | None, block_titles: str | None
) -> ReleasedIndex:
  """The blocks and the vectors that belong to a plan's weights."""
  if RETRIEVER not in plan.parts or plan.block_vectors is None:
    raise ConversionError(
      f"--corpus_dir is for released blocks with their vectors, and "
      f"{plan.source} has none (of TF-Hub modules, they are the retriever's "
      "encoded/encoded.ckpt); leave it out, and use build_corpus and "
      "build_index"
    )
  records = plan.block_records if block_records is None else block_records
  if records is None:
    raise ConversionError(
      f"{plan.source} has the vectors of blocks without their texts; pass "
      "--block_records, blocks.tfr or block_records.npy of the same release"
    )
  return ReleasedIndex(
    open_records(records),
    plan.block_vectors,
    titles=None if block_titles is None else open_records(block_titles),
  )
