"""BERT as Google's TensorFlow 1 code left it.

bert_config.json, vocab.txt, bert_model.ckpt.{index,data-…}
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.bert_models import (
  BertWeights,
  TowerOptions,
  plan_bert,
)
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
from realm_jax.conversion.hugging_face.directory import read_json
from realm_jax.conversion.names import TENSORFLOW
from realm_jax.conversion.plan import PARTS, ImportPlan
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, require_uncased
from realm_jax.models.bert import BertConfig
from realm_jax.text import wordpieces

CONFIG = "bert_config.json"
# What training leaves beside the weights.
LEFTOVERS = {
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "of the optimizer",
  r"(.*/)?global_step": "counts the steps of another run",
  r"(.*/)?cls/seq_relationship/.*": "of the next-sentence objective",
}

_WORDS = "embeddings/word_embeddings"
# Google's gelu is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_tanh"}
_ATTENTION_MASK_VALUE = -10000.0
# Of every BERT that Google released.
_HEAD_SIZE = 64


def plan_tf_bert(
  input_path: Path,
  options: TowerOptions,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] = PARTS,
) -> ImportPlan:
  """The plan of importing a checkpoint, or two for two towers.

  Args:
    input_path: the directory of a checkpoint, or a checkpoint's prefix: of the
      query tower, or of both, and of the reader.
    options: how vectors are made.
    block_input: of the block tower, where it has its own.
    parts: which to import.

  Raises:
    ConversionError: there is no BERT that the encoder here can be.
    VocabularyError: its vocabulary cannot be used.
  """
  weights, pieces, notes = _read(input_path)
  other = None
  if block_input is not None:
    other, other_pieces, _ = _read(block_input)
    if other_pieces != pieces:
      raise ConversionError(
        f"{block_input} and {input_path} have different vocabularies; queries "
        "and blocks share one here"
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
  described = read_json(config_path)
  pieces = read_uncased_pieces(prefix.with_name(VOCABULARY_FILE))
  require_vocabulary_size(described, len(pieces), where=str(config_path))
  roots = encoder_roots(checkpoint.shapes)
  if len(roots) != 1:
    raise ConversionError(
      f"{prefix} holds {len(roots)} encoders ({', '.join(roots) or 'none'}); "
      "--from=tf_bert wants one, --from=tf_realm is for ORQA's and REALM's"
    )
  weights = bert_weights(
    checkpoint, roots[0], read_config(described, where=str(config_path))
  )
  return weights, pieces, dropout_note(described)


def locate(path: Path) -> Path:
  """A checkpoint's prefix: the path itself, or the only one in a directory.

  Raises:
    ConversionError: there is none, or there are several.
  """
  if path.is_dir():
    return only_checkpoint(path, where=str(path))
  return path.with_name(path.name.removesuffix(INDEX))


def encoder_roots(shapes: Mapping[str, object]) -> list[str]:
  """What precedes `bert/embeddings/…`, of every encoder of a checkpoint."""
  words = f"bert/{_WORDS}"
  return [
    name.removesuffix(words)
    for name in shapes
    if f"/{name}".endswith(f"/{words}")
  ]


def bert_weights(
  checkpoint: TfCheckpoint, root: str, config: BertConfig
) -> BertWeights:
  """One encoder of a checkpoint, with its head."""
  return BertWeights(
    source=checkpoint,
    dialect=TENSORFLOW,
    config=config,
    prefix=f"{root}bert/",
    head=f"{root}cls/predictions",
    leftovers=dict(LEFTOVERS),
    where=str(checkpoint.prefix),
  )


def read_config(config: Mapping[str, Any], *, where: str) -> BertConfig:
  """The encoder of a `bert_config.json`, with the numerics of Google's code.

  Raises:
    ConversionError: it describes something that our encoder is not.
  """
  return read_bert_config(
    config,
    where=where,
    activations=_ACTIVATIONS,
    attention_mask_value=_ATTENTION_MASK_VALUE,
  )


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], root: str, *, where: str
) -> BertConfig:
  """The encoder that variables show, where no `bert_config.json` does.

  They do not show the number of heads, which have 64 dimensions in every BERT
  that Google released.

  Raises:
    ConversionError: they are not of such a BERT.
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
      f"{where} has {found}, so its sizes cannot be read off its variables "
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
  """The pieces of a vocabulary file, if they are of an uncased model.

  Raises:
    ConversionError: a piece has a capital letter.
    VocabularyError: the pieces cannot serve here, as where [PAD] is not 0.
  """
  pieces = wordpieces.read_pieces(path)
  require_uncased(pieces, where=str(path))
  return pieces
