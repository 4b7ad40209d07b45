"""`config.json` of BERT and our configuration of the encoder, both ways."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.models.bert import BertConfig

# Added to the scores of padding by transformers; Google's code has -10000.
HF_ATTENTION_MASK_VALUE = float(np.finfo(np.float32).min)
# The first spelling is the one to write.
HF_ACTIVATIONS = {
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
  config: Mapping[str, Any],
  *,
  where: str,
  activations: Mapping[str, str] | None = None,
  default_activation: str = "gelu",
  attention_mask_value: float = HF_ATTENTION_MASK_VALUE,
) -> BertConfig:
  """The encoder of a `config.json`.

  Args:
    config: the file's object. Numbers that are absent take BERT's defaults;
      sizes must be there.
    where: the file, for errors.
    activations: what `hidden_act` means, by its value; None has transformers'.
    default_activation: where `hidden_act` is absent.
    attention_mask_value: what that system adds to the scores of padding.

  Raises:
    ConversionError: it describes something that our encoder is not.
  """
  activations = HF_ACTIVATIONS if activations is None else activations
  missing = [key for key in _SIZES.values() if key not in config]
  if missing:
    raise ConversionError(
      f"{where} has no {', '.join(missing)}; want the config.json of a BERT"
    )
  fields: dict[str, Any] = {}
  for field, key in _SIZES.items():
    fields[field] = read_number(config[key], key, where, int)
  for field, key in _NUMBERS.items():
    if key in config:
      fields[field] = read_number(config[key], key, where, float)
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
      "has absolute positions alone"
    )
  types = config.get("type_vocab_size", 2)
  if types != 2:
    raise ConversionError(
      f"{where} has type_vocab_size={types}, where BERT has 2"
      + (" (RoBERTa has 1, and is not BERT)" if types == 1 else "")
    )
  try:
    return BertConfig(
      **fields,
      activation=activations[activation],
      attention_mask_value=attention_mask_value,
    )
  except ValueError as error:
    raise ConversionError(f"{where}: {error}") from error


def require_vocabulary_size(
  config: Mapping[str, Any], num_pieces: int, *, where: str
) -> None:
  """Refuses weights with more or fewer word embeddings than pieces.

  Raises:
    ConversionError: `vocab_size` is another.
  """
  size = read_number(
    config.get("vocab_size", num_pieces), "vocab_size", where, int
  )
  if size > num_pieces:
    raise ConversionError(
      f"{where} has vocab_size={size}, but the vocabulary has {num_pieces} "
      f"pieces: the last {size - num_pieces} rows of the word embeddings stand "
      "for none. Name them in a copy of vocab.txt by as many lines at its end "
      f"([unused_row_{num_pieces}] and so on)"
    )
  if size < num_pieces:
    raise ConversionError(
      f"{where} has vocab_size={size}, but the vocabulary has {num_pieces} "
      "pieces; this is another model's vocabulary, or pieces were added to it "
      "without resizing the embeddings"
    )


def write_bert_config(config: BertConfig, *, vocab_size: int) -> dict[str, Any]:
  """The entries of a `config.json` that describe the encoder."""
  names = {ours: theirs for theirs, ours in reversed(HF_ACTIVATIONS.items())}
  return {
    **{key: getattr(config, field) for field, key in _SIZES.items()},
    **{key: getattr(config, field) for field, key in _NUMBERS.items()},
    "attention_probs_dropout_prob": config.dropout_rate,
    "hidden_act": names[config.activation],
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": vocab_size,
    "pad_token_id": 0,
  }


def dropout_note(config: Mapping[str, Any]) -> list[str]:
  """A line where attention drops out at another rate than the rest."""
  hidden = config.get("hidden_dropout_prob")
  attention = config.get("attention_probs_dropout_prob", hidden)
  if hidden is None or attention == hidden:
    return []
  return [
    f"dropout: {hidden} everywhere (hidden_dropout_prob); "
    f"attention_probs_dropout_prob={attention} is not used"
  ]


def read_number(value: Any, key: str, where: str, kind: type) -> Any:
  """An entry of a config.json as an int or a float, of the given kind.

  Raises:
    ConversionError: it is none, or a size below 1.
  """
  good = (
    isinstance(value, int | float)
    and not isinstance(value, bool)
    and math.isfinite(value)
  )
  if not good or (kind is int and (value != int(value) or value < 1)):
    wanted = "a whole number of 1 or more" if kind is int else "a number"
    raise ConversionError(
      f"{where} has {key}={value!r}; want {wanted}: is it the file of these "
      "weights?"
    )
  return kind(value)
