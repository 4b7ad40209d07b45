"""Configuration and vocabulary of a BERT in other systems, in and out."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.models.bert import Activation, BertConfig
from realm_jax.storage.json_files import JsonValue
from realm_jax.text import wordpieces
from realm_jax.weights import WeightsError
from realm_jax.weights.model import VOCABULARY_FILE

# Added to the scores of padding by transformers.
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
TOKENIZER = "tokenizer_config.json"
_FAST_TOKENIZER = "tokenizer.json"
# How text is normalized, by the names in both files.
_CASE = "do_lower_case"
_NORMALIZATION = {
  _CASE: "lowercase",
  "strip_accents": "strip_accents",
  "tokenize_chinese_chars": "handle_chinese_chars",
}


@dataclasses.dataclass(frozen=True)
class ConfigFile:
  """The JSON object of a file such as `config.json`.

  Attributes:
    entries: Entries of the object.
    where: Name of the file in errors.
  """

  entries: Mapping[str, JsonValue]
  where: str

  @classmethod
  def read(cls, path: Path, *, optional: bool = False) -> "ConfigFile":
    """Reads a file; without one, an `optional` one has no entries."""
    if optional and not path.exists():
      return cls({}, str(path))
    found = read_json(path)
    if not isinstance(found, Mapping):
      raise WeightsError(f"{path} holds no JSON object")
    return cls(found, str(path))

  def get(self, key: str, default: JsonValue = None) -> JsonValue:
    """Returns an entry as it is."""
    return self.entries.get(key, default)

  def section(self, key: str) -> "ConfigFile":
    """Returns an entry that is an object, or else an empty one."""
    value = self.get(key)
    return ConfigFile(value if isinstance(value, Mapping) else {}, self.where)

  def size(self, key: str, default: int | None = None) -> int:
    """Returns an entry that must be a whole number of 1 or more."""
    wanted = "a whole number of 1 or more"
    value = self.number(key, default, wanted)
    if value < 1 or value % 1:
      raise self.error(key, wanted)
    return int(value)

  def number(
    self, key: str, default: float | None = None, wanted: str = "a number"
  ) -> float:
    """Returns an entry that must be a number."""
    value = self.get(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
      raise self.error(key, wanted)
    return float(value)

  def error(self, key: str, wanted: str) -> WeightsError:
    """Returns the error of an entry that is not what is wanted."""
    return WeightsError(
      f"{self.where} has {key}={self.get(key)!r}; want {wanted}: is it the "
      "file of these weights?"
    )


def read_json(path: Path) -> Any:
  """Reads a JSON file; raises `WeightsError` if it is none."""
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise WeightsError(
      f"{path} cannot be read ({error.strerror}); want a directory that "
      "`save_pretrained` wrote"
    ) from error
  except ValueError as error:
    raise WeightsError(f"{path} is not JSON: {error}") from error


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
  activation = config.get("hidden_act", default_activation)
  if not isinstance(activation, str) or activation not in activations:
    raise config.error("hidden_act", f"one of {', '.join(activations)}")
  for key, value in (
    ("position_embedding_type", "absolute"),
    # RoBERTa has 1.
    ("type_vocab_size", 2),
  ):
    if config.get(key, value) != value:
      raise config.error(key, f"{value}, as BERT has it")
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
    raise WeightsError(f"{config.where}: {error}") from error


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


# --- Vocabularies -------------------------------------------------------------


def read_uncased_pieces(path: Path) -> tuple[str, ...]:
  """Reads the vocabulary file of an uncased model."""
  pieces = wordpieces.read_pieces(path)
  if cased := _with_capitals(pieces):
    raise WeightsError(
      f"{path} has pieces with capitals, such as {cased[0]!r}: it is a cased "
      "model's, and wordpieces here are uncased BERT's. Use the uncased model"
    )
  return pieces


def read_vocabulary(directory: Path) -> dict[Path, tuple[str, ...]]:
  """Reads the pieces of an uncased model, by the file that they are from.

  They are in vocab.txt or else in tokenizer.json, in the order of their ids.
  """
  pieces, source = _read_pieces(directory)
  if _is_cased(directory, pieces):
    raise WeightsError(
      f"{directory} is a cased model's ({_CASE} in {TOKENIZER}, or pieces with "
      f"capitals, such as {_with_capitals(pieces)[:1]}), and wordpieces here "
      "are uncased BERT's. Use the uncased model"
    )
  return {source: pieces}


def read_cased_or_uncased(directory: Path) -> wordpieces.WordpieceVocabulary:
  """Reads the vocabulary of a model that may be cased."""
  pieces, _ = _read_pieces(directory)
  cased = _is_cased(directory, pieces)
  return wordpieces.vocabulary_of(pieces, cased=cased)


def _with_capitals(pieces: Sequence[str]) -> list[str]:
  # Special and unused pieces are in brackets.
  return [p for p in pieces if re.search(r"[A-Z]", p) and p[0] != "["]


def _is_cased(directory: Path, pieces: Sequence[str]) -> bool:
  """Returns whether text keeps its capitals.

  tokenizer_config.json goes before the normalizer of tokenizer.json, and where
  neither says it, pieces with capitals do. (The `do_lower_case` of
  sentence-transformers' own file only says whether text is lower-cased before.)

  Raises:
    WeightsError: Text is normalized otherwise than it is here.
  """
  config = ConfigFile.read(directory / TOKENIZER, optional=True)
  fast = ConfigFile.read(directory / _FAST_TOKENIZER, optional=True)
  said = {
    name: fast.section("normalizer").get(in_fast)
    if config.get(name) is None
    else config.get(name)
    for name, in_fast in _NORMALIZATION.items()
  }
  cased = bool(_with_capitals(pieces))
  if said[_CASE] is not None:
    cased = said[_CASE] is False
  # By default, accents are stripped where letters are lower-cased.
  wanted = {"strip_accents": not cased, "tokenize_chinese_chars": True}
  for name, value in wanted.items():
    if said[name] not in (None, value):
      raise WeightsError(
        f"the tokenizer of {directory} has {name}={said[name]}; the wordpieces "
        f"of {'a cased' if cased else 'an uncased'} model have {value} here. "
        "Use a model of the usual kind"
      )
  return cased


def _read_pieces(directory: Path) -> tuple[tuple[str, ...], Path]:
  """Returns the pieces, and the file that they are from."""
  source, fast = directory / VOCABULARY_FILE, directory / _FAST_TOKENIZER
  if source.exists():
    return wordpieces.read_pieces(source), source
  if not fast.exists():
    raise WeightsError(
      f"{directory} has no {VOCABULARY_FILE} and no {_FAST_TOKENIZER}; copy "
      "the vocabulary of the weights there"
    )
  config = ConfigFile.read(fast)
  model = config.section("model")
  prefix = model.get("continuing_subword_prefix", wordpieces.CONTINUATION)
  if model.get("type") != "WordPiece" or prefix != wordpieces.CONTINUATION:
    raise WeightsError(
      f"{fast} is a {model.get('type')} tokenizer with the prefix {prefix!r}; "
      f"want BERT's WordPiece with {wordpieces.CONTINUATION!r}"
    )
  added: Any = config.get("added_tokens") or ()
  try:
    ids: dict[Any, Any] = dict(model.section("vocab").entries)
    ids |= {token["content"]: token["id"] for token in added}
    pieces = tuple(sorted(ids, key=ids.__getitem__))
    is_numbered = [ids[piece] for piece in pieces] == [*range(len(ids))]
    if not is_numbered or not pieces or {*map(type, pieces)} != {str}:
      raise ValueError("there is not one piece for each id")
  except (TypeError, KeyError, ValueError) as error:
    raise WeightsError(
      f"{fast} is damaged ({error!r}); want a model with its vocab, pieces "
      "with their ids, and added_tokens with content and id: copy it again"
    ) from error
  wordpieces.check_pieces(pieces, source=str(fast))
  return pieces, fast


def tokenizer_config(max_length: int) -> dict[str, JsonValue]:
  """Returns the `tokenizer_config.json` of our wordpieces."""
  return {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "model_max_length": max_length,
    "pad_token": wordpieces.PAD,
    "unk_token": wordpieces.UNK,
    "cls_token": wordpieces.CLS,
    "sep_token": wordpieces.SEP,
    "mask_token": wordpieces.MASK,
  }
