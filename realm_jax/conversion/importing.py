"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
MODEL_DIR/generations/0…  the vectors of the released blocks, if there are any
CORPUS_DIR                the corpus of these blocks
"""

import contextlib
import dataclasses

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore, loop_record
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.gin_model import gin_model
from realm_jax.conversion.google.bert import plan_tf_bert
from realm_jax.conversion.google.realm import plan_tf_realm
from realm_jax.conversion.google.released_index import (
  BlockOptions,
  check_corpus_dir,
  import_index,
  open_released,
)
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.hugging_face.realm import plan_hf_realm
from realm_jax.conversion.mapping import Allowance, read_parameters, show_shape
from realm_jax.conversion.output_directory import check_new, new_directory
from realm_jax.conversion.parameters import (
  BoundModel,
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.planning import RETRIEVER, ImportPlan, ImportSource
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.files import kept_configuration
from realm_jax.files.json_file import whole_text_file
from realm_jax.files.object_store.store_access import require_writable
from realm_jax.text.wordpieces import vocabulary_of, write_pieces

_STEP = 0
# What a REALM does not leave open.
_OF_BERT = tuple(
  field.name
  for field in dataclasses.fields(TowerOptions)
  if field.default is None and field.name != "score_scale"
)
_NOT_OF_HF_REALM = ("tensor_prefix", "vocab", "block_input", *_OF_BERT)
# The planner of each kind of input, and the options that it refuses.
_PLANNERS = {
  "hf_bert": (plan_hf_bert, ("vocab",)),
  "hf_realm": (plan_hf_realm, _NOT_OF_HF_REALM),
  "tf_bert": (plan_tf_bert, ("tensor_prefix", "vocab")),
  "tf_realm": (plan_tf_realm, ("tensor_prefix", *_OF_BERT)),
}


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
    StoreAccessError: If an output is in a bucket that cannot be written.
  """
  source.require_local()
  check_new(output_dir)
  blocks = blocks or BlockOptions()
  check_corpus_dir(blocks.corpus_dir, output_dir)
  require_writable(blocks.corpus_dir)
  plan = _plan(source, towers or TowerOptions())
  released = open_released(plan, blocks)
  model = BoundModel.of(plan.retriever, plan.reader, vocabulary_of(plan.pieces))
  logging.info("Reading %s", plan.source)
  parameters, report = read_parameters(
    plan.feeds,
    parameter_shapes(model.retriever, model.reader, plan.parts),
    expected_fresh=plan.expected_fresh,
    allowance=allowance,
  )
  parameters |= fresh_parameters(
    model.retriever, model.reader, (row.name for row in report.fresh), seed=seed
  )
  params = nested(parameters)
  with contextlib.ExitStack() as stack, new_directory(output_dir) as directory:
    write_pieces(directory / VOCABULARY_FILE, plan.pieces)
    with whole_text_file(directory / kept_configuration.MODEL) as file:
      file.write(gin_model(plan.retriever, plan.reader, source=plan.source))
    if released is not None:
      stack.enter_context(
        import_index(released, directory, model, params[RETRIEVER])
      )
    # The checkpoint is last: it makes the directory a MODEL_DIR.
    logging.info("Writing checkpoint %d of %s", _STEP, output_dir)
    # There is no position in the data, for no trainer wrote this checkpoint.
    loop = loop_record(None, vocabulary=model.vocabulary.sha256)
    with contextlib.closing(CheckpointStore(directory)) as store:
      store.save(_STEP, {**params, "loop": loop})
      store.wait()
  lines = [report.table(), *plan.notes]
  if plan.block_vectors is not None:
    shape = show_shape(tuple(plan.block_vectors.shape))
    lines.append(
      f"block vectors {shape}: left out; --corpus_dir imports them with "
      "their blocks"
      if released is None
      else f"block vectors {shape}: published as generation 0"
    )
  return "\n".join(lines)


def _plan(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Returns the plan of an import; options of no use to it are refused."""
  source.choose_parts()
  # The fields of both have the names of their flags.
  choices = {**vars(source), **vars(options)}
  planner, refused = _PLANNERS[source.kind]
  given = [f"--{name}" for name in refused if choices[name] is not None]
  if given:
    raise ConversionError(
      f"--from={source.kind} takes no {', '.join(given)}; its input leaves no "
      "choice"
    )
  return planner(source, options)
