"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
MODEL_DIR/generations/0…  where blocks and their vectors were released too,
CORPUS_DIR                … and the corpus of these blocks
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import VOCABULARY, vocabulary_digest
from realm_jax.conversion import gin_model
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hf_bert import plan_hf_bert
from realm_jax.conversion.hf_realm import plan_hf_realm
from realm_jax.conversion.mapping import (
  Allowance,
  Report,
  read_parameters,
  show_shape,
)
from realm_jax.conversion.parameters import (
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import PARTS, RETRIEVER, ImportPlan
from realm_jax.conversion.released_index import (
  ReleasedIndex,
  import_index,
  open_records,
)
from realm_jax.conversion.tf_bert import plan_tf_bert
from realm_jax.conversion.tf_realm import plan_tf_realm
from realm_jax.conversion.vocabulary import vocabulary_of, write_vocabulary
from realm_jax.conversion.whole_directory import check_target, whole_directory
from realm_jax.corpus.directory_writer import (
  check_target as check_corpus_target,
)
from realm_jax.indexes.registry import config_from

KINDS = ("hf_bert", "hf_realm", "tf_bert", "tf_realm")

_STEP = 0
_NO_GENERATION = -1


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
  index: str = "scann",
  allow_left: Sequence[str] = (),
  allow_fresh: Sequence[str] = (),
  seed: int = 0,
) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    kind: one of `KINDS`.
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
    index: the kind of search structure for the generation.
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
  if kind not in KINDS:
    raise ConversionError(f"--from={kind}; want one of {', '.join(KINDS)}")
  check_target(output_dir)
  given_parts = None if parts is None else tuple(parts)
  allowance = Allowance(tuple(allow_left), tuple(allow_fresh))
  choices = {
    "pooling": pooling,
    "projection_size": projection_size,
    "normalize": normalize,
    "query_prefix": query_prefix,
    "block_prefix": block_prefix,
    "title_separator": title_separator,
    "token_types": token_types,
  }
  common = {"score_scale": score_scale, "separate_towers": separate_towers}
  plan = _plan(
    kind,
    Path(input_dir),
    choices,
    common,
    block_input=None if block_input is None else Path(block_input),
    parts=given_parts,
    tensor_prefix=tensor_prefix,
    vocab=None if vocab is None else Path(vocab),
  )
  publish = None
  if corpus_dir is not None:
    released = _released(plan, block_records, block_titles)
    released.check(plan.retriever)
    check_corpus_target(epath.Path(corpus_dir), overwrite=False)
    publish = functools.partial(
      import_index,
      released,
      corpus_dir=corpus_dir,
      index=config_from(index, {}),
      block_length=block_length,
    )
  report = write_model_dir(
    plan, output_dir, allowance=allowance, seed=seed, publish=publish
  )
  lines = [report.table(), *plan.notes]
  if corpus_dir is None and plan.block_vectors is not None:
    lines.append(
      f"block vectors {show_shape(tuple(plan.block_vectors.shape))}: left; "
      "--corpus_dir imports them with their blocks"
    )
  return "\n".join(lines)


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


def _plan(
  kind: str,
  input_path: Path,
  choices: dict[str, Any],
  common: dict[str, Any],
  *,
  block_input: Path | None,
  parts: tuple[str, ...] | None,
  tensor_prefix: str | None,
  vocab: Path | None,
) -> ImportPlan:
  """The plan of a kind; options that it has no use for are refused."""
  towers = {"block_input": block_input}
  prefix = {"tensor_prefix": tensor_prefix}
  vocabulary = {"vocab": vocab}
  if kind == "hf_realm":
    _refuse(kind, choices, towers, prefix, vocabulary)
    return plan_hf_realm(input_path, parts=parts, **common)
  if kind == "tf_realm":
    _refuse(kind, choices, prefix)
    return plan_tf_realm(
      input_path, parts=parts, **towers, **vocabulary, **common
    )
  options = TowerOptions(**choices, **common)
  parts = parts or PARTS
  if kind == "tf_bert":
    _refuse(kind, prefix, vocabulary)
    return plan_tf_bert(input_path, options, parts=parts, **towers)
  _refuse(kind, vocabulary)
  return plan_hf_bert(input_path, options, parts=parts, **towers, **prefix)


def _refuse(kind: str, *groups: Mapping[str, Any]) -> None:
  """Refuses options that the weights of a kind leave no room for."""
  values = {name: v for group in groups for name, v in group.items()}
  given = [f"--{name}" for name, value in values.items() if value is not None]
  if given:
    raise ConversionError(
      f"--from={kind} takes no {', '.join(given)}: its models fix that"
    )


def write_model_dir(
  plan: ImportPlan,
  output_dir: epath.PathLike,
  *,
  allowance: Allowance | None = None,
  seed: int = 0,
  publish: Callable[..., Any] | None = None,
) -> Report:
  """Carries out a plan.

  Args:
    plan: what to do.
    output_dir: the MODEL_DIR; appears complete or not at all.
    allowance: what may be left, or start afresh.
    seed: of what starts afresh.
    publish: adds a generation: `import_index` but for the model.

  Raises:
    ConversionError: the weights do not fit, or `output_dir` is not empty.
  """
  vocabulary = vocabulary_of(plan.pieces)
  settings = {
    "vocab_size": vocabulary.vocab_size,
    "separator_id": vocabulary.sep_id,
  }
  retriever = plan.retriever.for_vocabulary(**settings)
  reader = plan.reader.for_vocabulary(**settings)
  logging.info("reading %s", plan.source)
  parameters, report = read_parameters(
    plan.feeds,
    parameter_shapes(retriever, reader, plan.parts),
    expected_fresh=plan.expected_fresh,
    allowance=allowance,
  )
  parameters |= fresh_parameters(
    retriever, reader, (row.path for row in report.fresh), seed=seed
  )
  # No trainer wrote it, so it names no place in the data.
  loop = {
    "generation": np.int64(_NO_GENERATION),
    VOCABULARY: vocabulary_digest(vocabulary.sha256),
  }
  text = gin_model.gin_model(
    plan.retriever, plan.reader, plan.form, source=plan.source
  )
  with whole_directory(output_dir) as directory:
    logging.info("writing checkpoint %d of %s", _STEP, output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_vocabulary(directory, plan.pieces)
    (directory / gin_model.NAME).write_text(text)
    store = CheckpointStore(directory, read_only=False)
    try:
      store.save(_STEP, {**nested(parameters), "loop": loop})
      store.wait()
    finally:
      store.close()
    if publish is not None:
      publish(
        model_dir=directory,
        retriever=retriever,
        params=nested(parameters)[RETRIEVER],
        vocabulary=vocabulary,
      )
  return report
