"""BERT directories of Hugging Face: what they hold, and how to read it."""

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
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import directory as hf_directory
from realm_jax.conversion.hugging_face import tokenizer as hf_tokenizer
from realm_jax.conversion.hugging_face.config import (
  dropout_note,
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.hugging_face.sentence_transformers import (
  MODULES,
  SentenceModel,
  read_sentence_model,
)
from realm_jax.conversion.names import TORCH
from realm_jax.conversion.plan import PARTS, ImportPlan

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
  """The plan of importing a directory, or two for two towers.

  Args:
    input_dir: of the query tower, or of both, and of the reader.
    options: how vectors are made; what it leaves open, `modules.json` says.
    block_input: of the block tower, where it has its own.
    parts: which to import.
    tensor_prefix: what precedes `embeddings.…` in names; None finds it.

  Raises:
    ConversionError: a directory is no BERT that the encoder here can be.
    VocabularyError: its vocabulary cannot be used.
  """
  own = _read(input_dir, tensor_prefix)
  notes = list(own.notes)
  other = None
  if block_input is not None:
    other = _read(block_input, tensor_prefix)
    _require_same_side(own, other)
  if own.sentence is not None:
    of_blocks = None if other is None else other.sentence
    options, added = _with_sentence_model(
      options, own.sentence, of_blocks or own.sentence
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
  hf_directory.require_directory(directory)
  sentence = read_sentence_model(directory)
  weights_dir = directory if sentence is None else sentence.weights_dir
  path = weights_dir / hf_directory.CONFIG
  config = hf_directory.read_json(path)
  kind = config.get("model_type", _MODEL_TYPES[0])
  if kind not in _MODEL_TYPES:
    raise ConversionError(
      f"{path} has model_type={kind!r}; --from=hf_bert wants BERT itself"
      + (" (--from=hf_realm is for this one)" if kind == "realm" else "")
    )
  if config.get("projection_dim"):
    raise ConversionError(
      f"{path} has projection_dim={config['projection_dim']}; a projection "
      "without LayerNorm has no place here"
    )
  encoder = read_bert_config(config, where=str(path))
  pieces = hf_tokenizer.read_vocabulary(weights_dir)
  require_vocabulary_size(config, len(pieces), where=str(path))
  source = hf_directory.open_tensors(weights_dir)
  prefix = _prefix(source.shapes, tensor_prefix, str(weights_dir))
  weights = BertWeights(
    source=source,
    dialect=TORCH,
    config=encoder,
    prefix=prefix,
    # The head stands beside `bert.`, not in it.
    head=prefix.removesuffix("bert.") + HEAD,
    leftovers={
      rf"{re.escape(prefix)}embeddings\.(position|token_type)_ids": (
        "counted here, not stored"
      ),
      r"(.*\.)?cls\.seq_relationship\..*": "of the next-sentence objective",
    },
    where=str(weights_dir),
  )
  return _Directory(directory, weights, pieces, sentence, dropout_note(config))


def _prefix(
  shapes: Mapping[str, object], wanted: str | None, where: str
) -> str:
  """What precedes `embeddings.…` in the names of the tensors."""
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


def _require_same_side(one: _Directory, other: _Directory) -> None:
  """Refuses towers that a retriever could not hold together."""
  if one.pieces != other.pieces:
    raise ConversionError(
      f"{other.path} and {one.path} have different vocabularies; queries and "
      "blocks share one here"
    )
  ways = [
    None if d.sentence is None else (d.sentence.pooling, d.sentence.normalize)
    for d in (one, other)
  ]
  if ways[0] != ways[1]:
    raise ConversionError(
      f"the {MODULES} of {other.path} and {one.path} make vectors in "
      "different ways; a retriever has one for both"
    )


def _with_sentence_model(
  options: TowerOptions, sentence: SentenceModel, of_blocks: SentenceModel
) -> tuple[TowerOptions, list[str]]:
  """The options, where left open, as sentence-transformers would have them."""
  own: dict[str, Any] = {
    "pooling": sentence.pooling,
    "normalize": sentence.normalize,
    "query_prefix": sentence.query_prompt,
    "block_prefix": of_blocks.block_prompt,
    # It reads `[CLS] text [SEP]`, of type 0 throughout.
    "title_separator": False,
    "token_types": False,
  }
  taken = {
    name: value for name, value in own.items() if getattr(options, name) is None
  }
  said = ", ".join(f"{name}={value!r}" for name, value in taken.items())
  notes = [f"as sentence-transformers has it: {said}"] if said else []
  if sentence.max_length is not None:
    notes.append(
      f"at home it reads the first {sentence.max_length} tokens of a text; "
      "longer blocks are more than it was trained on"
    )
  return dataclasses.replace(options, **taken), notes
