"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
"""

from collections.abc import Mapping, Sequence
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
from realm_jax.conversion.mapping import Allowance, Report, read_parameters
from realm_jax.conversion.parameters import (
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import PARTS, ImportPlan
from realm_jax.conversion.vocabulary import vocabulary_of, write_vocabulary
from realm_jax.conversion.whole_directory import check_target, whole_directory

KINDS = ("hf_bert", "hf_realm")

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
  allow_left: Sequence[str] = (),
  allow_fresh: Sequence[str] = (),
  seed: int = 0,
) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    kind: one of `KINDS`.
    input_dir: the local directory to read.
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
    allow_left: regular expressions for tensors that may stay unused.
    allow_fresh: and for parameters that may start afresh.
    seed: of what starts afresh.

  Returns:
    What was mapped, left and initialised, in lines.

  Raises:
    ConversionError: the input does not fit, or the output is not empty.
    VocabularyError: the input's vocabulary cannot be used.
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
  if kind == "hf_realm":
    _refuse(kind, choices, block_input=block_input, tensor_prefix=tensor_prefix)
    plan = plan_hf_realm(Path(input_dir), parts=given_parts, **common)
  else:
    plan = plan_hf_bert(
      Path(input_dir),
      TowerOptions(**choices, **common),
      block_input=None if block_input is None else Path(block_input),
      parts=given_parts or PARTS,
      tensor_prefix=tensor_prefix,
    )
  report = write_model_dir(plan, output_dir, allowance=allowance, seed=seed)
  return "\n".join([report.table(), *plan.notes])


def _refuse(kind: str, *groups: Mapping[str, Any], **more: Any) -> None:
  """Refuses options that the weights of a kind leave no room for."""
  values = {name: v for group in (*groups, more) for name, v in group.items()}
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
) -> Report:
  """Carries out a plan.

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
  return report
