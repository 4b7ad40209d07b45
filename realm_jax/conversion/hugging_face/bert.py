"""Imports BERT from directories of Hugging Face."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.bert_models import (
  BertInput,
  BertWeights,
  TowerOptions,
  plan_bert,
)
from realm_jax.conversion.config_file import ConfigFile
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.config import dropout_note
from realm_jax.conversion.hugging_face.directory import (
  FolderTensors,
  open_model,
  open_tensors,
  read_model_config,
)
from realm_jax.conversion.hugging_face.sentence_transformers.layout import (
  MODULES,
)
from realm_jax.conversion.hugging_face.sentence_transformers.reading import (
  SentenceModel,
  read_sentence_model,
)
from realm_jax.conversion.mapping import Shape
from realm_jax.conversion.names import HEAD, Dialect
from realm_jax.conversion.planning import ImportPlan, ImportSource

# DPR's question and context encoders are BERT under another name.
_MODEL_TYPES = ("bert", "dpr")
_WORDS = "embeddings.word_embeddings.weight"


def plan_hf_bert(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Plans the import of a directory, or of two for two towers.

  `modules.json` decides what the options leave open.
  """
  prefix = source.tensor_prefix
  own, sentence = _read(source.path, prefix)
  other, for_blocks = None, sentence
  if source.block_path is not None:
    other, for_blocks = _read(source.block_path, prefix)
    methods = [
      None if model is None else model.method
      for model in (sentence, for_blocks)
    ]
    if methods[0] != methods[1]:
      raise ConversionError(
        f"the {MODULES} of {other.path} and {own.path} make vectors in "
        "different ways; a retriever has one for both"
      )
  if sentence is not None and for_blocks is not None:
    options, notes = _with_sentence_model(options, sentence, for_blocks)
    own = own._replace(notes=[*own.notes, *notes])
  return plan_bert(source, options, own, other)


def _read(
  directory: Path, tensor_prefix: str | None
) -> tuple[BertInput, SentenceModel | None]:
  sentence = read_sentence_model(directory)
  weights_dir = directory if sentence is None else sentence.weights_dir
  config = read_model_config(weights_dir)
  _require_bert(config)
  model = open_model(weights_dir, config)
  prefix = _prefix(model.tensors.shapes, tensor_prefix, str(weights_dir))
  tensors = model.tensors
  if sentence is not None and sentence.folders:
    modules = {n: open_tensors(p) for n, p in sentence.folders.items()}
    tensors = FolderTensors(tensors, modules)
  weights = BertWeights(
    source=tensors,
    dialect=Dialect.TORCH,
    config=model.encoder,
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
    pooler_dense=sentence.pooler if sentence else "",
    projection=sentence.projection if sentence else None,
  )
  notes = dropout_note(config)
  return BertInput(directory, weights, model.pieces, notes), sentence


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


def _with_sentence_model(
  options: TowerOptions, sentence: SentenceModel, for_blocks: SentenceModel
) -> tuple[TowerOptions, list[str]]:
  """Completes the options as sentence-transformers would, with notes."""
  own: dict[str, Any] = {
    "pooling": sentence.pooling,
    "normalize": sentence.normalize,
    "query_prefix": sentence.query_prompt,
    "block_prefix": for_blocks.block_prompt,
    # By default it reads `[CLS] text [SEP]`, all of it of type 0.
    "title_separator": sentence.settings.title_separator,
    "token_types": sentence.settings.token_types,
    "score_scale": sentence.settings.score_scale,
  }
  taken = {
    name: value
    for name, value in own.items()
    if getattr(options, name) is None and value is not None
  }
  said = ", ".join(f"{name}={value!r}" for name, value in taken.items())
  notes = [f"from sentence-transformers' files: {said}"] if said else []
  if sentence.max_length is not None:
    notes.append(
      f"sentence-transformers reads the first {sentence.max_length} tokens of "
      "a text; longer blocks are more than it was trained on"
    )
  return dataclasses.replace(options, **taken), notes
