"""The MODEL_DIR that an import writes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, runtime_checkable

from absl import logging
from etils import epath

from realm_jax.checkpoints.loop_item import generation_record
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import VOCABULARY, digest_bytes
from realm_jax.conversion import gin_model
from realm_jax.conversion.mapping import Allowance, Report, read_parameters
from realm_jax.conversion.output_directory import new_directory
from realm_jax.conversion.parameters import (
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import RETRIEVER, ImportPlan
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  vocabulary_of,
  write_pieces,
)

_STEP = 0


@runtime_checkable
class Publish(Protocol):
  """Adds a generation to a MODEL_DIR, as `import_index` does.

  If the context that it returns is left by an error, it removes what it wrote
  elsewhere.
  """

  def __call__(
    self,
    *,
    model_dir: epath.PathLike,
    retriever: Retriever,
    params: Params,
    vocabulary: WordpieceVocabulary,
  ) -> AbstractContextManager[object]: ...


def write_model_dir(
  plan: ImportPlan,
  output_dir: epath.PathLike,
  *,
  allowance: Allowance | None = None,
  seed: int = 0,
  publish: Publish | None = None,
) -> Report:
  """Writes the model of a plan, with its parameters in checkpoint 0.

  Args:
    plan: Plan to carry out.
    output_dir: MODEL_DIR to make; it appears complete or not at all.
    allowance: Misfits that the user accepts.
    seed: Seed of parameters that start from random values.
    publish: Function that adds the generation of the released blocks.

  Raises:
    ConversionError: If the weights do not fit, or `output_dir` is not empty.
    TargetError, DiskFullError: If `output_dir` cannot be written.
  """
  vocabulary = vocabulary_of(plan.pieces)
  settings = {
    "vocab_size": vocabulary.vocab_size,
    "separator_id": vocabulary.sep_id,
  }
  retriever = plan.retriever.for_vocabulary(**settings)
  reader = plan.reader.for_vocabulary(**settings)
  logging.info("Reading %s", plan.source)
  parameters, report = read_parameters(
    plan.feeds,
    parameter_shapes(retriever, reader, plan.parts),
    expected_fresh=plan.expected_fresh,
    allowance=allowance,
  )
  parameters |= fresh_parameters(
    retriever, reader, (row.name for row in report.fresh), seed=seed
  )
  params = nested(parameters)
  text = gin_model.gin_model(plan.retriever, plan.reader, source=plan.source)
  with ExitStack() as published, new_directory(output_dir) as directory:
    directory.mkdir(parents=True, exist_ok=True)
    write_pieces(directory / VOCABULARY_FILE, plan.pieces)
    (directory / gin_model.NAME).write_text(text)
    if publish is not None:
      published.enter_context(
        publish(
          model_dir=directory,
          retriever=retriever,
          params=params[RETRIEVER],
          vocabulary=vocabulary,
        )
      )
    # The checkpoint is last: it makes the directory a MODEL_DIR.
    logging.info("Writing checkpoint %d of %s", _STEP, output_dir)
    # There is no position in the data, for no trainer wrote this checkpoint.
    loop = {
      **generation_record(None),
      VOCABULARY: digest_bytes(vocabulary.sha256),
    }
    _save(directory, {**params, "loop": loop})
  return report


def _save(directory: epath.Path, items: Mapping[str, Params]) -> None:
  store = CheckpointStore(directory, read_only=False)
  try:
    store.save(_STEP, items)
    store.wait()
  finally:
    store.close()
