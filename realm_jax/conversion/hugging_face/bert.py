"""Imports BERT from directories of Hugging Face."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.bert_models import (
  BertWeights,
  TowerOptions,
  plan_bert,
)
from realm_jax.conversion.config_file import ConfigFile, read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.config import (
  dropout_note,
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.hugging_face.directory import (
  CONFIG,
  open_tensors,
  require_directory,
)
from realm_jax.conversion.hugging_face.sentence_transformers import (
  MODULES,
  SentenceModel,
  read_sentence_model,
)
from realm_jax.conversion.hugging_face.tokenizer import read_vocabulary
from realm_jax.conversion.names import TORCH
from realm_jax.conversion.plan import PARTS, ImportPlan
from realm_jax.conversion.tensors import Shape

HEAD = "cls/predictions"
# DPR's question and context encoders are BERT under another name.
_MODEL_TYPES = ("bert", "dpr")
_WORDS = "embeddings.word_embeddings.weight"


def plan_hf_bert(
  input_dir: Path,
  options: TowerOptions,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] = PARTS,
  tensor_prefix: str | None = None,
) -> ImportPlan:
  """Plans the import of a directory, or of two for two towers.

  Args:
    input_dir: Directory of the reader and of the query tower, or of both
      towers.
    options: How vectors are made; `modules.json` decides what it leaves open.
    block_input: Directory of the block tower, if it has its own.
    parts: Parts to import.
    tensor_prefix: Prefix of `embeddings.…` in names; None finds it.

  Raises:
    ConversionError: If a directory has no BERT that our encoder can express.
    VocabularyError: If its vocabulary cannot be used.
  """
  own = _read(input_dir, tensor_prefix)
  other = None
  if block_input is not None:
    other = _read(block_input, tensor_prefix)
    _require_compatible(own, other)
  notes = list(own.notes)
  if own.sentence is not None:
    for_blocks = None if other is None else other.sentence
    options, added = _with_sentence_model(
      options, own.sentence, for_blocks or own.sentence
    )
    notes += added
  return plan_bert(
    own.weights,
    options,
    source=f"{input_dir.resolve().name} (hf_bert)",
    pieces=own.pieces,
    block_weights=None if other is None else other.weights,
    parts=parts,
    notes=notes,
  )


@dataclasses.dataclass(frozen=True)
class _Directory:
  """One directory, opened and checked."""

  path: Path
  weights: BertWeights
  pieces: tuple[str, ...]
  sentence: SentenceModel | None
  notes: list[str]


def _read(directory: Path, tensor_prefix: str | None) -> _Directory:
  require_directory(directory)
  sentence = read_sentence_model(directory)
  weights_dir = directory if sentence is None else sentence.weights_dir
  config = read_config_file(weights_dir / CONFIG)
  _require_bert(config)
  encoder = read_bert_config(config)
  pieces = read_vocabulary(weights_dir)
  require_vocabulary_size(config, len(pieces))
  source = open_tensors(weights_dir)
  prefix = _prefix(source.shapes, tensor_prefix, str(weights_dir))
  weights = BertWeights(
    source=source,
    dialect=TORCH,
    config=encoder,
    prefix=prefix,
    # The head is beside `bert.`, not in it.
    head=prefix.removesuffix("bert.") + HEAD,
    leftovers={
      rf"{re.escape(prefix)}embeddings\.(position|token_type)_ids": (
        "computed here, not stored"
      ),
      r"(.*\.)?cls\.seq_relationship\..*": "a next-sentence head",
    },
    where=str(weights_dir),
  )
  return _Directory(directory, weights, pieces, sentence, dropout_note(config))


def _require_bert(config: ConfigFile) -> None:
  kind = config.get("model_type", _MODEL_TYPES[0])
  if kind not in _MODEL_TYPES:
    raise ConversionError(
      f"{config.where} has model_type={kind!r}; --from=hf_bert wants BERT"
      + (" (--from=hf_realm is for this one)" if kind == "realm" else "")
    )
  if size := config.get("projection_dim"):
    raise ConversionError(
      f"{config.where} has projection_dim={size}; towers here have no "
      "projection without a LayerNorm"
    )


def _prefix(shapes: Mapping[str, Shape], wanted: str | None, where: str) -> str:
  """Returns the prefix of `embeddings.…` in the names of the tensors."""
  found = [
    name.removesuffix(_WORDS)
    for name in shapes
    if f".{name}".endswith(f".{_WORDS}")
  ]
  if wanted is not None:
    found = [prefix for prefix in found if prefix == wanted]
  if not found:
    few = ", ".join(list(shapes)[:5]) or "nothing"
    raise ConversionError(
      f"{where} has no {wanted or ''}{_WORDS}, so it is no BERT; it has {few}, "
      "…"
    )
  if len(found) > 1:
    raise ConversionError(
      f"{where} holds {len(found)} encoders, {', '.join(map(repr, found))}; "
      "choose one with --tensor_prefix, and let --allow_left name the tensors "
      "of the others"
    )
  return found[0]


def _require_compatible(one: _Directory, other: _Directory) -> None:
  """Checks that one retriever can hold both towers."""
  if one.pieces != other.pieces:
    raise ConversionError(
      f"{other.path} and {one.path} have different vocabularies; queries and "
      "blocks must share one"
    )
  methods = [
    None if d.sentence is None else (d.sentence.pooling, d.sentence.normalize)
    for d in (one, other)
  ]
  if methods[0] != methods[1]:
    raise ConversionError(
      f"the {MODULES} of {other.path} and {one.path} make vectors in "
      "different ways; a retriever has one for both"
    )


def _with_sentence_model(
  options: TowerOptions, sentence: SentenceModel, for_blocks: SentenceModel
) -> tuple[TowerOptions, list[str]]:
  """Completes the options as sentence-transformers would, with notes."""
  own: dict[str, Any] = {
    "pooling": sentence.pooling,
    "normalize": sentence.normalize,
    "query_prefix": sentence.query_prompt,
    "block_prefix": for_blocks.block_prompt,
    # It reads `[CLS] text [SEP]`, all of it of type 0.
    "title_separator": False,
    "token_types": False,
  }
  taken = {
    name: value for name, value in own.items() if getattr(options, name) is None
  }
  said = ", ".join(f"{name}={value!r}" for name, value in taken.items())
  notes = [f"from sentence-transformers' files: {said}"] if said else []
  if sentence.max_length is not None:
    notes.append(
      f"sentence-transformers reads the first {sentence.max_length} tokens of "
      "a text; longer blocks are more than it was trained on"
    )
  return dataclasses.replace(options, **taken), notes
