"""ModernBERT in Hugging Face's files, and the export of either kind of BERT.

Hugging Face's ModernBERT fuses the matrices of queries, keys and values, and
those for both halves of the gated layer. An import splits them into parts,
which have names in tables. The word embeddings are in the order of the file's
ids, in which padding is not the first (`text.byte_pairs`).
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.models.bert import BertConfig
from realm_jax.models.modernbert import ModernBertConfig
from realm_jax.settings import PositiveFloat
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
  Export,
  JsonFile,
  class_files,
  read_sizes,
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
  sizes = {"local_theta": theta, **read_sizes(file, ModernBertConfig, _KEYS)}
  bert = ModernBertConfig(**sizes, activation=ACTIVATIONS[activation])
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


def export_encoder(
  bert: BertConfig,
  words: BertVocabulary,
  *,
  path: str,
  around: Table = (),
  masked_lm: bool = False,
) -> Export:
  """Plans the export of a BERT or ModernBERT.

  Args:
    bert: Configuration of the encoder.
    words: Vocabulary of the encoder.
    path: Path of the tower or reader that has the encoder.
    around: Modules after the encoder, such as a projection.
    masked_lm: Whether to include the masked-LM head.
  """
  name = "BertForMaskedLM" if masked_lm else "BertModel"
  if not isinstance(bert, ModernBertConfig):
    assert isinstance(words, WordpieceVocabulary)
    prefix = "bert." if masked_lm else ""
    table = name_maps.bert(prefix, bert.num_layers, around)
    table += name_maps.masked_lm_head() if masked_lm else []
    return Export(
      name_maps.below(table, ours=f"{path}/"),
      class_files(bert, name, words.normalization),
    )
  assert isinstance(words, BytePairVocabulary)
  table = _table(_CLASS if masked_lm else "", bert, around)
  table += _HEAD if masked_lm else []

  def theirs(tensors: Tensors) -> dict[str, np.ndarray]:
    kept = {n: t for n, t in tensors.items() if not n.endswith(_NO_NORM)}
    order = words.from_theirs(np.arange(words.size))
    kept |= {n: kept[n][order] for n in _BY_PIECE if n in kept}
    return _joined(kept)

  files = _class_files(bert, f"Modern{name}", words)
  return Export(name_maps.below(table, ours=f"{path}/"), files, convert=theirs)


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
  split = dict(tensors)
  for name, (fused, parts) in itertools.product(tensors, _FUSED.items()):
    if name.endswith(f".{fused}.weight"):
      names = [name.replace(fused, part) for part in parts]
      matrices = np.split(split.pop(name), len(parts))
      split |= dict(zip(names, matrices, strict=True))
  return split


def _joined(tensors: Tensors) -> dict[str, np.ndarray]:
  """Fuses the matrices again; the inverse of `_split`."""
  joined = dict(tensors)
  for name, (fused, parts) in itertools.product(tensors, _FUSED.items()):
    if name.endswith(f".{parts[0]}.weight"):
      names = [name.replace(parts[0], part) for part in parts]
      matrices = [joined.pop(part) for part in names]
      joined[name.replace(parts[0], fused)] = np.concatenate(matrices)
  return joined


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
