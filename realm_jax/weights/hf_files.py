"""Files of a BERT in the form of Hugging Face's `save_pretrained`."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from realm_jax.models.bert import Activation, BertConfig
from realm_jax.models.reader import BertReader
from realm_jax.settings import (
  PositiveInt,
  Range,
  accepts,
  describe,
  parameter_types,
)
from realm_jax.storage.json_files import JsonValue
from realm_jax.text import vocabulary
from realm_jax.text.normalization import Normalization
from realm_jax.text.vocabulary_files import TOKENIZER_CONFIG
from realm_jax.weights import WeightsError
from realm_jax.weights.name_maps import Table, Tensors

CONFIG = "config.json"
# Released open QA reads questions of 32 tokens before blocks of 288.
_OPEN_QA_JOINT_LENGTH = 288 + 32
# Added to the scores of padding by transformers.
_ATTENTION_MASK_VALUE = float(np.finfo(np.float32).min)
# An export writes the first spelling.
ACTIVATIONS: Mapping[str, Activation] = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
}
_KEYS = {
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "intermediate_size": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "layer_norm_eps": "layer_norm_eps",
  "dropout_rate": "hidden_dropout_prob",
  "init_stddev": "initializer_range",
}
SPECIAL_TOKENS: Mapping[str, JsonValue] = {
  "pad_token": vocabulary.PAD,
  "unk_token": vocabulary.UNK,
  "cls_token": vocabulary.CLS,
  "sep_token": vocabulary.SEP,
  "mask_token": vocabulary.MASK,
}
# More than any BERT has. Without this limit, a damaged file could make the
# import lay out any number of layers.
_MAX_LAYERS = 1000
# RoBERTa has only one token type.
_FIXED = {"position_embedding_type": "absolute", "type_vocab_size": 2}


class JsonFile:
  """A JSON file, whose values are checked when they are read.

  Attributes:
    path: Path of the file.
    entries: Contents, of type `kind`; empty if the file is optional and
      missing.
  """

  def __init__(
    self, path: Path, *, kind: Any = dict[str, Any], optional: bool = False
  ) -> None:
    self.path, self.entries = path, {}
    if optional and not path.exists():
      return
    try:
      self.entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
      raise WeightsError(
        f"{path} cannot be read ({error}); copy it again, from the directory "
        "that the model was saved in"
      ) from error
    if not accepts(kind, self.entries):
      raise WeightsError(f"{path} does not hold what it should, {kind}")

  def get(self, key: str, expected: Any, default: Any = None) -> Any:
    """Returns an entry, which must have a type, or be one of several values.

    Args:
      key: Key of the entry.
      expected: Type, or tuple of values.
      default: Value of a missing entry.
    """
    value = self.entries.get(key, default)
    if isinstance(expected, tuple):
      fits, names = value in expected, " or ".join(map(repr, expected))
    else:
      fits, names = accepts(expected, value), describe(expected)
    if not fits:
      raise WeightsError(
        f"{self.path} has {key}={value!r}; want {names}: is it the file of "
        "these weights?"
      )
    return value


def read_bert_config(
  file: JsonFile, *, default_activation: str = "gelu"
) -> BertConfig:
  """Reads the configuration of an encoder, with the defaults of BERT-base.

  `default_activation` is the default of `hidden_act`.
  """
  activation = file.get("hidden_act", tuple(ACTIVATIONS), default_activation)
  for key, value in _FIXED.items():
    file.get(key, (value,), value)
  try:
    return BertConfig(
      **read_sizes(file, BertConfig, _KEYS),
      activation=ACTIVATIONS[activation],
      attention_mask_value=_ATTENTION_MASK_VALUE,
    )
  except ValueError as error:
    raise WeightsError(f"{file.path}: {error}") from error


def read_sizes(
  file: JsonFile, config: type[BertConfig], keys: Mapping[str, str]
) -> dict[str, Any]:
  """Reads the fields of a configuration that a file has.

  `keys` are the file's names of the fields.
  """
  bounded = Annotated[int, Range(least=1, most=_MAX_LAYERS)]
  types = parameter_types(config) | {"num_layers": bounded}
  return {
    field: file.get(key, types[field])
    for field, key in keys.items()
    if file.entries.get(key) is not None
  }


def read_open_qa_lengths(file: JsonFile, bert: BertConfig) -> dict[str, int]:
  """Reads the lengths of a reader that was trained for open QA."""
  length = file.get("reader_seq_len", PositiveInt, _OPEN_QA_JOINT_LENGTH)
  width = file.get("max_span_width", PositiveInt, BertReader.max_answer_width)
  return {
    "joint_length": min(length, bert.max_positions),
    "max_answer_width": width,
  }


class Export(NamedTuple):
  """A directory to write.

  Attributes:
    table: Names of the model's modules in the other system.
    files: Contents of other files by path: texts, or JSON values.
    folders: Folders to create. Tensors whose names start with a folder and a
      dot are written to a file of weights in that folder.
    notes: Lines for the report about what the directory cannot express.
    convert: Function that converts the encoder's tensors to the other system's.
  """

  table: Table
  files: Mapping[str, Any]
  folders: Sequence[str] = ()
  notes: Sequence[str] = ()
  convert: Callable[[Tensors], dict[str, np.ndarray]] = dict


def class_files(
  bert: BertConfig, architecture: str, normalization: Normalization
) -> dict[str, dict[str, JsonValue]]:
  """Returns the JSON files of a BERT class, including its tokenizer's."""
  names = {ours: theirs for theirs, ours in reversed([*ACTIVATIONS.items()])}
  lowercase, strips = normalization.lowercase, normalization.strip_accents
  return {
    CONFIG: {
      "architectures": [architecture],
      "model_type": "bert",
      "torch_dtype": "float32",
      **{key: getattr(bert, field) for field, key in _KEYS.items()},
      "attention_probs_dropout_prob": bert.dropout_rate,
      "hidden_act": names[bert.activation],
      **_FIXED,
      "vocab_size": bert.vocab_size,
      "pad_token_id": 0,
    },
    TOKENIZER_CONFIG: {
      "tokenizer_class": "BertTokenizer",
      "do_lower_case": lowercase,
      # By default, accents are removed if letters are lower-cased.
      "strip_accents": None if strips == lowercase else strips,
      "tokenize_chinese_chars": True,
      "model_max_length": bert.max_positions,
      **SPECIAL_TOKENS,
    },
  }
