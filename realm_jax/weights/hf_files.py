"""The files of a BERT as Hugging Face's `save_pretrained` writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.models.bert import Activation, BertConfig
from realm_jax.models.reader import BertReader
from realm_jax.settings import PositiveInt, accepts, describe, parameter_types
from realm_jax.storage.json_files import JsonValue
from realm_jax.text import wordpieces
from realm_jax.weights import WeightsError
from realm_jax.weights.name_maps import Table

CONFIG, VOCABULARY_FILE = "config.json", "vocab.txt"
TOKENIZER = "tokenizer_config.json"
_FAST_TOKENIZER = "tokenizer.json"
# Released open QA reads blocks of 288 tokens after 32 of the question.
_OPEN_QA_JOINT_LENGTH = 288 + 32
# Added to the scores of padding by transformers.
_ATTENTION_MASK_VALUE = float(np.finfo(np.float32).min)
# An export writes the first spelling.
_ACTIVATIONS: Mapping[str, Activation] = {
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
# More than any BERT has: what a file says is laid out before it is refused.
_MAX_LAYERS = 1000
# RoBERTa has one type.
_FIXED = {"position_embedding_type": "absolute", "type_vocab_size": 2}


class JsonFile:
  """A JSON file, whose values are checked when they are read.

  Attributes:
    path: Path of the file.
    entries: What it holds, a `kind`; nothing if it may be missing and is.
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

  def get(self, key: str, wanted: Any, default: Any = None) -> Any:
    """Returns an entry, which `wanted` says: a type, or a tuple of values."""
    value = self.entries.get(key, default)
    if isinstance(wanted, tuple):
      fits, names = value in wanted, " or ".join(map(repr, wanted))
    else:
      fits, names = accepts(wanted, value), describe(wanted)
    if not fits:
      raise WeightsError(
        f"{self.path} has {key}={value!r}; want {names}: is it the file of "
        "these weights?"
      )
    return value


def read_bert_config(
  file: JsonFile, *, default_activation: str = "gelu"
) -> BertConfig:
  """Reads the configuration of an encoder; what is missing is as in BERT-base.

  `default_activation` is the value of a missing `hidden_act`.
  """
  activation = file.get("hidden_act", tuple(_ACTIVATIONS), default_activation)
  for key, value in _FIXED.items():
    file.get(key, (value,), value)
  num_layers = file.get("num_hidden_layers", PositiveInt, 12)
  if num_layers > _MAX_LAYERS:
    raise WeightsError(
      f"{file.path} has num_hidden_layers={num_layers}; want at most "
      f"{_MAX_LAYERS}: is it the file of these weights?"
    )
  types = parameter_types(BertConfig)
  fields = {
    field: file.get(key, types[field])
    for field, key in _KEYS.items()
    if key in file.entries
  }
  try:
    return BertConfig(
      **fields,
      activation=_ACTIVATIONS[activation],
      attention_mask_value=_ATTENTION_MASK_VALUE,
    )
  except ValueError as error:
    raise WeightsError(f"{file.path}: {error}") from error


def read_open_qa_lengths(file: JsonFile, bert: BertConfig) -> dict[str, int]:
  """Reads the lengths of a reader that was trained for open QA."""
  length = file.get("reader_seq_len", PositiveInt, _OPEN_QA_JOINT_LENGTH)
  width = file.get("max_span_width", PositiveInt, BertReader.max_answer_width)
  return {
    "joint_length": min(length, bert.max_positions),
    "max_answer_width": width,
  }


class Vocabulary(NamedTuple):
  """Pieces of a vocabulary, the file they are from, and whether it is cased."""

  path: Path
  pieces: tuple[str, ...]
  cased: bool


def read_vocabulary(path: Path) -> Vocabulary:
  """Reads a vocabulary file, or that of a directory of Hugging Face.

  There the pieces are in vocab.txt or else in tokenizer.json, in the order of
  their ids. Whether text keeps its capitals, tokenizer_config.json says before
  the normalizer of tokenizer.json, and where neither does, pieces with capitals
  say it. (The `do_lower_case` of sentence-transformers' own file only says
  whether text is lower-cased before.)

  Raises:
    VocabularyError: The pieces are no BERT vocabulary.
  """
  if not path.is_dir():
    pieces = wordpieces.read_pieces(path)
    return Vocabulary(path, pieces, wordpieces.has_capitals(pieces))
  config = JsonFile(path / TOKENIZER, optional=True)
  fast = JsonFile(path / _FAST_TOKENIZER, optional=True)
  file = path / VOCABULARY_FILE
  if file.exists() or not fast.entries:
    pieces = wordpieces.read_pieces(file)
  else:
    file, pieces = fast.path, _fast_pieces(fast)
  normalizer = fast.get("normalizer", dict[str, Any] | None) or {}

  def said(name: str, in_fast: str) -> Any:
    value = config.entries.get(name)
    return normalizer.get(in_fast) if value is None else value

  is_lower = said("do_lower_case", "lowercase")
  cased = wordpieces.has_capitals(pieces) if is_lower is None else not is_lower
  for name, in_fast, wanted in (
    # By default, accents are stripped where letters are lower-cased.
    ("strip_accents", "strip_accents", not cased),
    ("tokenize_chinese_chars", "handle_chinese_chars", True),
  ):
    if (value := said(name, in_fast)) not in (None, wanted):
      raise WeightsError(
        f"the tokenizer of {path} has {name}={value}; the wordpieces of "
        f"{'a cased' if cased else 'an uncased'} model have {wanted} here. Use "
        "a model of the usual kind"
      )
  return Vocabulary(file, pieces, cased)


def _fast_pieces(file: JsonFile) -> tuple[str, ...]:
  """Returns the pieces of a `tokenizer.json`."""
  model = file.get("model", dict[str, Any])
  prefix = model.get("continuing_subword_prefix", wordpieces.CONTINUATION)
  if model.get("type") != "WordPiece" or prefix != wordpieces.CONTINUATION:
    raise WeightsError(
      f"{file.path} is a {model.get('type')} tokenizer with the prefix "
      f"{prefix!r}; want BERT's WordPiece with {wordpieces.CONTINUATION!r}"
    )
  added = file.get("added_tokens", list[dict[str, Any]] | None) or ()
  ids = {token.get("content"): token.get("id") for token in added}
  ids |= model.get("vocab") or {}
  if not accepts(dict[str, int], ids):
    raise WeightsError(f"{file.path} has pieces without an id; copy it again")
  by_id = {number: piece for piece, number in ids.items()}
  pieces = tuple(str(by_id.get(number, "")) for number in range(len(ids)))
  wordpieces.check_pieces(pieces, source=str(file.path))
  return pieces


class Export(NamedTuple):
  """A directory to write.

  Attributes:
    part: Part of the model whose parameters are written, completely or not.
    table: Names of its modules there.
    files: Contents of other files by path: texts, or JSON values.
    folders: Folders to make. Tensors whose names begin with one and a dot have
      a file of weights in it.
    notes: Lines for the report: what the directory cannot say.
  """

  part: str
  table: Table
  files: Mapping[str, JsonValue]
  folders: Sequence[str] = ()
  notes: Sequence[str] = ()


def class_files(
  bert: BertConfig, architecture: str, *, cased: bool
) -> dict[str, dict[str, JsonValue]]:
  """Returns the JSON files of a class of BERT, its tokenizer's included."""
  names = {ours: theirs for theirs, ours in reversed([*_ACTIVATIONS.items()])}
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
    TOKENIZER: {
      "tokenizer_class": "BertTokenizer",
      "do_lower_case": not cased,
      "strip_accents": None,
      "tokenize_chinese_chars": True,
      "model_max_length": bert.max_positions,
      "pad_token": wordpieces.PAD,
      "unk_token": wordpieces.UNK,
      "cls_token": wordpieces.CLS,
      "sep_token": wordpieces.SEP,
      "mask_token": wordpieces.MASK,
    },
  }
