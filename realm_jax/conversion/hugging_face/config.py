"""Translates `config.json` of BERT to our encoder's configuration and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from realm_jax.conversion.config_file import ConfigFile
from realm_jax.conversion.errors import ConversionError
from realm_jax.files.json_file import JsonValue
from realm_jax.models.bert import Activation, BertConfig

# Added to the scores of padding by transformers; Google's code has -10000.
HF_ATTENTION_MASK_VALUE = float(np.finfo(np.float32).min)
# An export writes the first spelling.
HF_ACTIVATIONS: Mapping[str, Activation] = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
}
_SIZES = {
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "intermediate_size": "intermediate_size",
  "max_positions": "max_position_embeddings",
}
_NUMBERS = {
  "layer_norm_eps": "layer_norm_eps",
  "dropout_rate": "hidden_dropout_prob",
  "init_stddev": "initializer_range",
}


def read_bert_config(
  config: ConfigFile,
  *,
  activations: Mapping[str, Activation] = HF_ACTIVATIONS,
  default_activation: str = "gelu",
  attention_mask_value: float = HF_ATTENTION_MASK_VALUE,
) -> BertConfig:
  """Reads the configuration of an encoder.

  Sizes must be there; other numbers default to BERT's.

  Args:
    config: File to read.
    activations: Our names of activations by values of `hidden_act`.
    default_activation: Value of a missing `hidden_act`.
    attention_mask_value: Value that the other system adds to the scores of
      padding.
  """
  where = config.where
  missing = [key for key in _SIZES.values() if key not in config.entries]
  if missing:
    raise ConversionError(
      f"{where} has no {', '.join(missing)}; want the config.json of a BERT"
    )
  activation = config.get("hidden_act", default_activation)
  if not isinstance(activation, str) or activation not in activations:
    raise ConversionError(
      f"{where} has hidden_act={activation!r}; the encoder here has "
      f"{', '.join(activations)}"
    )
  positions = config.get("position_embedding_type", "absolute")
  if positions != "absolute":
    raise ConversionError(
      f"{where} has position_embedding_type={positions!r}; the encoder here "
      "has only absolute positions"
    )
  types = config.get("type_vocab_size", 2)
  if types != 2:
    raise ConversionError(
      f"{where} has type_vocab_size={types}, where BERT has 2"
      + (" (RoBERTa has 1, and is not BERT)" if types == 1 else "")
    )
  fields: dict[str, Any] = {
    field: config.size(key) for field, key in _SIZES.items()
  }
  for field, key in _NUMBERS.items():
    if key in config.entries:
      fields[field] = config.number(key)
  try:
    return BertConfig(
      **fields,
      activation=activations[activation],
      attention_mask_value=attention_mask_value,
    )
  except ValueError as error:
    raise ConversionError(f"{where}: {error}") from error


def require_vocabulary_size(config: ConfigFile, num_pieces: int) -> None:
  """Raises `ConversionError` if `vocab_size` is not the number of pieces."""
  size = config.size("vocab_size", num_pieces)
  if size > num_pieces:
    raise ConversionError(
      f"{config.where} has vocab_size={size}, but the vocabulary has "
      f"{num_pieces} pieces: the last {size - num_pieces} rows of the word "
      "embeddings have no piece. Name them in a copy of vocab.txt by as many "
      f"lines at its end ([unused_row_{num_pieces}] and so on)"
    )
  if size < num_pieces:
    raise ConversionError(
      f"{config.where} has vocab_size={size}, but the vocabulary has "
      f"{num_pieces} pieces; this is another model's vocabulary, or it got new "
      "pieces without resizing the embeddings"
    )


def write_bert_config(config: BertConfig) -> dict[str, JsonValue]:
  """Returns the entries of a `config.json` that describe the encoder."""
  names = {ours: theirs for theirs, ours in reversed([*HF_ACTIVATIONS.items()])}
  return {
    **{key: getattr(config, field) for field, key in _SIZES.items()},
    **{key: getattr(config, field) for field, key in _NUMBERS.items()},
    "attention_probs_dropout_prob": config.dropout_rate,
    "hidden_act": names[config.activation],
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": config.vocab_size,
    "pad_token_id": 0,
  }


def mask_note(config: BertConfig) -> list[str]:
  """Returns a note if padding is masked by another value than transformers'."""
  if config.attention_mask_value == HF_ATTENTION_MASK_VALUE:
    return []
  return [
    f"attention_mask_value={config.attention_mask_value} is not written; "
    "transformers adds the lowest float to the scores of padding"
  ]


def dropout_note(config: ConfigFile) -> list[str]:
  """Returns a note if attention has another dropout rate than the rest."""
  hidden = config.get("hidden_dropout_prob")
  attention = config.get("attention_probs_dropout_prob", hidden)
  if hidden is None or attention == hidden:
    return []
  return [
    f"dropout: {hidden} everywhere (hidden_dropout_prob); "
    f"attention_probs_dropout_prob={attention} is not used"
  ]
