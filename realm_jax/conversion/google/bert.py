"""BERT in the files of Google's TensorFlow 1 code.

bert_config.json, vocab.txt, bert_model.ckpt.{index,data-…}
"""

import re
from collections.abc import Mapping
from pathlib import Path

from realm_jax.conversion.bert_models import (
  BertWeights,
  TowerOptions,
  plan_bert,
)
from realm_jax.conversion.config_file import ConfigFile, read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.checkpoint import (
  INDEX,
  TfCheckpoint,
  only_checkpoint,
)
from realm_jax.conversion.hugging_face.config import (
  dropout_note,
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.names import TENSORFLOW
from realm_jax.conversion.plan import PARTS, ImportPlan
from realm_jax.conversion.tensors import Shape
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, require_uncased
from realm_jax.models.bert import BertConfig
from realm_jax.text import wordpieces

CONFIG = "bert_config.json"
# Variables of the training itself, which checkpoints hold beside the weights.
LEFTOVERS = {
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  r"(.*/)?cls/seq_relationship/.*": "a next-sentence head",
}

_WORDS = "embeddings/word_embeddings"
# Google's gelu is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_tanh"}
_ATTENTION_MASK_VALUE = -10000.0
# Every BERT that Google released has heads of this size.
_HEAD_SIZE = 64


def plan_tf_bert(
  input_path: Path,
  options: TowerOptions,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] = PARTS,
) -> ImportPlan:
  """Plans the import of a checkpoint, or of two for two towers.

  Args:
    input_path: Directory or prefix of the checkpoint of the reader and of the
      query tower, or of both towers.
    options: How vectors are made.
    block_input: Directory or prefix of the block tower's checkpoint, if it has
      its own.
    parts: Parts to import.

  Raises:
    ConversionError: If there is no BERT that our encoder can express.
    VocabularyError: If its vocabulary cannot be used.
  """
  weights, pieces, notes = _read(input_path)
  other = None
  if block_input is not None:
    other, other_pieces, _ = _read(block_input)
    if other_pieces != pieces:
      raise ConversionError(
        f"{block_input} and {input_path} have different vocabularies; queries "
        "and blocks must share one"
      )
  return plan_bert(
    weights,
    options,
    source=f"{input_path.resolve().name} (tf_bert)",
    pieces=pieces,
    block_weights=other,
    parts=parts,
    notes=notes,
  )


def _read(path: Path) -> tuple[BertWeights, tuple[str, ...], list[str]]:
  prefix = locate(path)
  checkpoint = TfCheckpoint(prefix)
  config_path = prefix.with_name(CONFIG)
  if not config_path.is_file():
    raise ConversionError(
      f"{config_path} is missing; --from=tf_bert wants {CONFIG}, "
      f"{VOCABULARY_FILE} and the checkpoint (bert_model.ckpt{INDEX}, …) in "
      "one directory"
    )
  config = read_config_file(config_path)
  pieces = read_uncased_pieces(prefix.with_name(VOCABULARY_FILE))
  require_vocabulary_size(config, len(pieces))
  roots = encoder_roots(checkpoint.shapes)
  if len(roots) != 1:
    raise ConversionError(
      f"{prefix} holds {len(roots)} encoders ({', '.join(roots) or 'none'}); "
      "--from=tf_bert wants one, --from=tf_realm is for ORQA's and REALM's"
    )
  weights = bert_weights(checkpoint, roots[0], read_config(config))
  return weights, pieces, dropout_note(config)


def locate(path: Path) -> Path:
  """Returns a checkpoint's prefix, given itself or as the only in a directory.

  Raises:
    ConversionError: If a directory has none, or several.
  """
  if path.is_dir():
    return only_checkpoint(path, where=str(path))
  return path.with_name(path.name.removesuffix(INDEX))


def encoder_roots(shapes: Mapping[str, Shape]) -> list[str]:
  """Returns the prefix of `bert/embeddings/…` for every encoder."""
  words = f"bert/{_WORDS}"
  return [
    name.removesuffix(words)
    for name in shapes
    if f"/{name}".endswith(f"/{words}")
  ]


def bert_weights(
  checkpoint: TfCheckpoint, root: str, config: BertConfig
) -> BertWeights:
  """Returns one encoder of a checkpoint with its masked-LM head."""
  return BertWeights(
    source=checkpoint,
    dialect=TENSORFLOW,
    config=config,
    prefix=f"{root}bert/",
    head=f"{root}cls/predictions",
    leftovers=dict(LEFTOVERS),
    where=str(checkpoint.prefix),
  )


def read_config(config: ConfigFile) -> BertConfig:
  """Reads a `bert_config.json`, with the numerics of Google's code.

  Raises:
    ConversionError: If our encoder cannot express it.
  """
  return read_bert_config(
    config,
    activations=_ACTIVATIONS,
    attention_mask_value=_ATTENTION_MASK_VALUE,
  )


def config_from_shapes(
  shapes: Mapping[str, Shape], root: str, *, where: str
) -> BertConfig:
  """Infers the configuration of an encoder from its variables.

  They do not show the number of heads, which have 64 dimensions in every BERT
  that Google released.

  Raises:
    ConversionError: If they are not of such a BERT.
  """
  prefix = f"{root}bert/"
  pattern = re.compile(rf"{re.escape(prefix)}encoder/layer_(\d+)/.*")
  layers = {m[1] for m in map(pattern.fullmatch, shapes) if m}
  hidden_size = shapes[f"{prefix}{_WORDS}"][-1]
  inner = f"{prefix}encoder/layer_0/intermediate/dense/kernel"
  positions = f"{prefix}embeddings/position_embeddings"
  missing = [name for name in (inner, positions) if name not in shapes]
  if missing or hidden_size % _HEAD_SIZE:
    found = f"no {missing[0]}" if missing else f"hidden size {hidden_size}"
    raise ConversionError(
      f"{where} has {found}, so its variables do not show its sizes "
      f"(heads of {_HEAD_SIZE} dimensions); put the model's {CONFIG} beside it"
    )
  return BertConfig(
    hidden_size=hidden_size,
    num_layers=len(layers),
    num_heads=hidden_size // _HEAD_SIZE,
    intermediate_size=shapes[inner][-1],
    max_positions=shapes[positions][0],
    activation=_ACTIVATIONS["gelu"],
    attention_mask_value=_ATTENTION_MASK_VALUE,
  )


def read_uncased_pieces(path: Path) -> tuple[str, ...]:
  """Reads the vocabulary file of an uncased model.

  Raises:
    ConversionError: If a piece has a capital letter.
    VocabularyError: If the vocabulary is not BERT's, as if [PAD] is not 0.
  """
  pieces = wordpieces.read_pieces(path)
  require_uncased(pieces, where=str(path))
  return pieces
