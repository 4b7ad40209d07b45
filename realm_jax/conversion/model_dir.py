"""Writes a new MODEL_DIR as a plan says."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import VOCABULARY, vocabulary_digest
from realm_jax.conversion import gin_model
from realm_jax.conversion.mapping import Allowance, Report, read_parameters
from realm_jax.conversion.parameters import (
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import RETRIEVER, ImportPlan
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.conversion.whole_directory import whole_directory
from realm_jax.text.wordpieces import vocabulary_of, write_pieces

_STEP = 0
_NO_GENERATION = -1


def write_model_dir(
  plan: ImportPlan,
  output_dir: epath.PathLike,
  *,
  allowance: Allowance | None = None,
  seed: int = 0,
  publish: Callable[..., AbstractContextManager[Any]] | None = None,
) -> Report:
  """Carries out a plan.

  Args:
    plan: what to do.
    output_dir: the MODEL_DIR; appears complete or not at all.
    allowance: what may be left, or start afresh.
    seed: of what starts afresh.
    publish: adds a generation, and takes back what it wrote elsewhere where
      leaving its context by an error: `import_index` but for the model.

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
  text = gin_model.gin_model(plan.retriever, plan.reader, source=plan.source)
  with ExitStack() as published, whole_directory(output_dir) as directory:
    directory.mkdir(parents=True, exist_ok=True)
    write_pieces(directory / VOCABULARY_FILE, plan.pieces)
    (directory / gin_model.NAME).write_text(text)
    if publish is not None:
      published.enter_context(
        publish(
          model_dir=directory,
          retriever=retriever,
          params=nested(parameters)[RETRIEVER],
          vocabulary=vocabulary,
        )
      )
    # Last: it is what makes a MODEL_DIR of the directory.
    logging.info("writing checkpoint %d of %s", _STEP, output_dir)
    store = CheckpointStore(directory, read_only=False)
    try:
      store.save(_STEP, {**nested(parameters), "loop": loop})
      store.wait()
    finally:
      store.close()
  return report
