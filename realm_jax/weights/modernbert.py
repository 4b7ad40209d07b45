"""ModernBERT in Hugging Face's files, and the export of either kind of BERT.

Hugging Face's ModernBERT fuses the matrices of queries, keys and values, and
those for both halves of the gated layer. An import splits them into parts,
which have names in tables. The word embeddings are in the order of the file's
ids, in which padding is not the first (`text.byte_pairs`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.models.bert import BertConfig
from realm_jax.models.modernbert import ModernBertConfig
from realm_jax.settings import PositiveFloat, parameter_types
from realm_jax.storage.json_files import JsonValue
from realm_jax.text.byte_pairs import BytePairVocabulary
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import TOKENIZER_CONFIG, read_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import WeightsError, name_maps
from realm_jax.weights.hf_files import (
  ACTIVATIONS,
  CONFIG,
  SPECIAL_TOKENS,
  JsonFile,
  class_files,
)
from realm_jax.weights.mapped_weights import Encoder, Source
from realm_jax.weights.name_maps import READER, WORDS, Module, Table, Tensors
from realm_jax.weights.tensor_files import open_tensors

_KEYS = {
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "intermediate_size": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "layer_norm_eps": "norm_eps",
  "dropout_rate": "mlp_dropout",
  "init_stddev": "initializer_range",
  "global_every": "global_attn_every_n_layers",
  "local_window": "local_attention",
  "global_theta": "global_rope_theta",
  "local_theta": "local_rope_theta",
}
_FIXED = {
  "attention_bias": False,
  "mlp_bias": False,
  "norm_bias": False,
  "decoder_bias": True,
  "rope_scaling": None,
}
_LAYER = {
  "attention_norm": "attn_norm",
  "attention/query": "attn/Wq",
  "attention/key": "attn/Wk",
  "attention/value": "attn/Wv",
  "attention/output": "attn/Wo",
  "mlp_norm": "mlp_norm",
  "up": "mlp/Wup",
  "gate": "mlp/Wgate",
  "down": "mlp/Wo",
}
_FUSED = {
  "attn.Wqkv": ("attn.Wq", "attn.Wk", "attn.Wv"),
  "mlp.Wi": ("mlp.Wup", "mlp.Wgate"),
}
_CLASS, _EMBEDDINGS = "model.", "embeddings.tok_embeddings.weight"
# The first layer has no LayerNorm before attention.
_NO_NORM = "layers.0.attn_norm.weight"
# Tensors with a row for each piece.
_BY_PIECE = (
  _EMBEDDINGS,
  f"{_CLASS}{_EMBEDDINGS}",
  "decoder.weight",
  "decoder.bias",
)


def open_encoder(
  folder: Path, around: Table, fields: Mapping[str, Any]
) -> Source:
  """Opens the folder of a ModernBERT.

  Args:
    folder: Folder with config.json, the weights and tokenizer.json.
    around: Modules after the encoder, such as a projection.
    fields: Fields of the retriever that other files determine.

  Raises:
    WeightsError: The folder has another model.
    VocabularyError: The tokenizer cannot be used.
  """
  file = JsonFile(folder / CONFIG)
  for key, value in _FIXED.items():
    file.get(key, (value,), value)
  theta = file.get("global_rope_theta", PositiveFloat)
  activation = file.get("hidden_activation", tuple(ACTIVATIONS), "gelu")
  types = parameter_types(ModernBertConfig)
  said = {
    field: file.get(key, types[field])
    for field, key in _KEYS.items()
    if file.entries.get(key) is not None
  }
  bert = ModernBertConfig(
    **{"local_theta": theta, **said}, activation=ACTIVATIONS[activation]
  )
  words = read_vocabulary(folder)
  if not isinstance(words, BytePairVocabulary):
    raise WeightsError(
      f"{folder} has a ModernBERT with wordpieces; want its tokenizer.json of "
      "byte-level pairs"
    )
  tensors = _split(open_tensors(folder))
  rows = words.from_theirs(np.arange(words.size))
  for name in _BY_PIECE:
    # Rows after the last piece are padding.
    if name in tensors and len(tensors[name]) >= words.size:
      tensors[name] = tensors[name][rows]
  has_class = f"{_CLASS}{_EMBEDDINGS}" in tensors
  prefix = _CLASS if has_class else ""
  ones = np.ones(bert.hidden_size, np.float32)
  tensors.setdefault(f"{prefix}{_NO_NORM}", ones)
  encoder = Encoder(
    *(prefix, bert, ("query", "block", READER)),
    _table(prefix, bert, around),
    _HEAD if "head.norm.weight" in tensors else (),
    {"pooling": "cls", "token_types": False, **fields},
  )
  return Source(tensors, "torch", [encoder], [words])


class Written(NamedTuple):
  """The exported form of an encoder.

  Attributes:
    table: Names of the modules.
    files: Contents of JSON files by name.
    theirs: Function that converts our tensors to the exported ones.
  """

  table: Table
  files: dict[str, dict[str, JsonValue]]
  theirs: Callable[[Tensors], dict[str, np.ndarray]]


def written(
  bert: BertConfig,
  words: BertVocabulary,
  *,
  around: Table = (),
  masked_lm: bool = False,
) -> Written:
  """Returns the exported form of a BERT or ModernBERT.

  Its masked-LM head is included with `masked_lm`.
  """
  name = "BertForMaskedLM" if masked_lm else "BertModel"
  if not isinstance(bert, ModernBertConfig):
    assert isinstance(words, WordpieceVocabulary)
    prefix = "bert." if masked_lm else ""
    table = name_maps.bert(prefix, bert.num_layers, around)
    table += name_maps.masked_lm_head() if masked_lm else []
    return Written(table, class_files(bert, name, words.normalization), dict)
  assert isinstance(words, BytePairVocabulary)
  table = _table(_CLASS if masked_lm else "", bert, around)
  table += _HEAD if masked_lm else []

  def theirs(tensors: Tensors) -> dict[str, np.ndarray]:
    made = {n: t for n, t in tensors.items() if not n.endswith(_NO_NORM)}
    order = words.from_theirs(np.arange(words.size))
    made |= {n: made[n][order] for n in _BY_PIECE if n in made}
    return _joined(made)

  files = _class_files(bert, f"Modern{name}", words)
  return Written(table, files, theirs)


def _table(prefix: str, bert: BertConfig, around: Table) -> list[Module]:
  names = {
    WORDS: "embeddings/tok_embeddings",
    "encoder/embedding_norm": "embeddings/norm",
    "encoder/final_norm": "final_norm",
  } | {
    f"encoder/layer_{i}/{ours}": f"layers/{i}/{theirs}"
    for i in range(bert.num_layers)
    for ours, theirs in _LAYER.items()
  }
  return [*(Module(o, prefix + t) for o, t in names.items()), *around]


_HEAD = [
  Module("masked_lm_head/dense", "head/dense"),
  Module("masked_lm_head/norm", "head/norm"),
  Module("masked_lm_head/bias", "decoder"),
  Module(WORDS, "decoder"),
]


def _split(tensors: Tensors) -> dict[str, np.ndarray]:
  """Splits the fused matrices among some tensors."""
  parts = dict(tensors)
  for name in tensors:
    for start, fused, own in _fused(name, lambda fused, _: fused):
      pieces = np.split(parts.pop(f"{start}{fused}.weight"), len(own))
      names = [f"{start}{one}.weight" for one in own]
      parts |= dict(zip(names, pieces, strict=True))
  return parts


def _joined(tensors: Tensors) -> dict[str, np.ndarray]:
  """Fuses the matrices again; the inverse of `_split`."""
  joined = dict(tensors)
  for name in tensors:
    for start, fused, own in _fused(name, lambda _, own: own[0]):
      pieces = [joined.pop(f"{start}{one}.weight") for one in own]
      joined[f"{start}{fused}.weight"] = np.concatenate(pieces)
  return joined


def _fused(
  name: str, end: Callable[[str, Sequence[str]], str]
) -> list[tuple[str, str, Sequence[str]]]:
  """Returns the prefix of a name, and the fused matrix that its `end` fits."""
  return [
    (name.removesuffix(f"{end(fused, own)}.weight"), fused, own)
    for fused, own in _FUSED.items()
    if name.endswith(f".{end(fused, own)}.weight")
  ]


def _class_files(
  bert: ModernBertConfig, architecture: str, words: BytePairVocabulary
) -> dict[str, dict[str, JsonValue]]:
  """Returns the JSON files of a ModernBERT class."""
  special = {
    "pad": words.pad_id,
    "cls": words.cls_id,
    "bos": words.cls_id,
    "sep": words.sep_id,
    "eos": words.sep_id,
  }
  names = {ours: theirs for theirs, ours in reversed([*ACTIVATIONS.items()])}
  return {
    CONFIG: {
      "architectures": [architecture],
      "model_type": "modernbert",
      "torch_dtype": "float32",
      **{key: getattr(bert, field) for field, key in _KEYS.items()},
      "attention_dropout": bert.dropout_rate,
      "embedding_dropout": bert.dropout_rate,
      "hidden_activation": names[bert.activation],
      **_FIXED,
      "vocab_size": bert.vocab_size,
      **{
        f"{name}_token_id": int(words.from_theirs(np.array(own)))
        for name, own in special.items()
      },
    },
    TOKENIZER_CONFIG: {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "model_max_length": bert.max_positions,
      "model_input_names": ["input_ids", "attention_mask"],
      **SPECIAL_TOKENS,
    },
  }
