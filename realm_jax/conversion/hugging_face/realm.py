"""REALM directories of Hugging Face: what each class holds, and where it goes.

| class | becomes |
| --- | --- |
| RealmEmbedder, RealmScorer | the retriever |
| RealmKnowledgeAugEncoder | the reader, with its masked-LM head |
| RealmReader | the reader, with its span head |
| RealmForOpenQA | both, and `block_emb` is an index's vectors |
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import directory as hf_directory
from realm_jax.conversion.hugging_face import realm_names as hf_realm_names
from realm_jax.conversion.hugging_face import tokenizer as hf_tokenizer
from realm_jax.conversion.hugging_face.config import (
  dropout_note,
  read_bert_config,
  read_number,
  require_vocabulary_size,
)
from realm_jax.conversion.hugging_face.realm_names import (
  BLOCK_VECTORS,
  EMBEDDER,
  ENCODER,
  PARTS_OF,
  QUERY_EMBEDDER,
  READER,
)
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import (
  OPEN_QA_JOINT_LENGTH,
  SEPARATE_TOWERS,
  SHARED_TOWER,
  ImportPlan,
  require_parts,
  usual_reader,
)
from realm_jax.conversion.tensors import TensorSource
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# The texts of the blocks, beside the weights.
_BLOCK_RECORDS = "block_records.npy"
# Those whose reader scores spans.
_SPAN_READERS = ("RealmReader", "RealmForOpenQA")


def plan_hf_realm(
  input_dir: Path,
  *,
  parts: tuple[str, ...] | None = None,
  separate_towers: bool = False,
  score_scale: float = 1.0,
) -> ImportPlan:
  """The plan of importing a directory.

  Args:
    input_dir: as `save_pretrained` left it, with the vocabulary.
    parts: which to import; None takes all that the class has.
    separate_towers: start two towers from weights that they share.
    score_scale: multiplies inner products.

  Raises:
    ConversionError: it is no REALM that the models here can be.
    VocabularyError: its vocabulary cannot be used.
  """
  hf_directory.require_directory(input_dir)
  path = input_dir / hf_directory.CONFIG
  config = hf_directory.read_json(path)
  name = _class_of(config, path)
  parts = PARTS_OF[name] if parts is None else parts
  require_parts(parts, PARTS_OF[name])
  pieces = hf_tokenizer.read_vocabulary(input_dir)
  require_vocabulary_size(config, len(pieces), where=str(path))
  encoder = read_bert_config(
    config, where=str(path), default_activation="gelu_new"
  )
  source = hf_directory.open_tensors(input_dir)

  rules: tuple[Rule, ...] = ()
  leftovers = {
    _below(rf"{ENCODER}embeddings.(position|token_type)_ids"): (
      "counted here, not stored"
    )
  }
  fresh: dict[str, str] = {}
  shared = not separate_towers
  if "retriever" in parts:
    rules, shared = _tower_rules(
      source, encoder, name, separate=separate_towers
    )
    leftovers[_below("cls.predictions..*", EMBEDDER, QUERY_EMBEDDER)] = (
      "a head that embedders have and do not use"
    )
  if "reader" in parts:
    rules += _reader_rules(encoder, name)
    leftovers |= _reader_leftovers(name)
    if name not in _SPAN_READERS:
      fresh["reader/span_head/.*"] = f"{name} has no span head"
  for part, prefix in (("retriever", EMBEDDER), ("reader", READER)):
    if part not in parts:
      leftovers[f"{prefix}.*"] = f"the {part}'s; see --parts"
  if name == "RealmForOpenQA":
    leftovers[BLOCK_VECTORS] = "vectors of blocks, which are no weights"
  return ImportPlan(
    source=f"{input_dir.resolve().name} (hf_realm, {name})",
    retriever=_retriever(
      encoder, config, str(path), shared=shared, score_scale=score_scale
    ),
    reader=_reader(encoder, config, str(path), name),
    parts=parts,
    pieces=pieces,
    feeds=(Feed(source, rules, leftovers, where=str(input_dir)),),
    expected_fresh=fresh,
    notes=(f"class: {name}", *dropout_note(config)),
    block_vectors=_block_vectors(source) if "retriever" in parts else None,
    block_records=_block_records(input_dir),
  )


def _block_vectors(source: TensorSource) -> Rows | None:
  if BLOCK_VECTORS not in source.shapes:
    return None
  return source.rows(BLOCK_VECTORS)


def _block_records(directory: Path) -> Path | None:
  path = directory / _BLOCK_RECORDS
  return path if path.is_file() else None


def _below(pattern: str, *prefixes: str) -> str:
  """A pattern for names with or without one of the prefixes (None: any)."""
  choice = "|".join(prefixes or (EMBEDDER, QUERY_EMBEDDER, READER))
  return f"({choice})?{pattern}"


def _class_of(config: Mapping[str, Any], path: Path) -> str:
  kind = config.get("model_type")
  named = config.get("architectures") or ["nothing"]
  name = str(named[0]) if isinstance(named, list) else ""
  if kind != "realm" or name not in PARTS_OF:
    raise ConversionError(
      f"{path} has model_type={kind!r} and architectures={named}; "
      f"--from=hf_realm wants 'realm' and one of {', '.join(PARTS_OF)}"
    )
  return name


def _retriever(
  encoder: BertConfig,
  config: Mapping[str, Any],
  where: str,
  *,
  shared: bool,
  score_scale: float,
) -> Retriever:
  size = config.get("retriever_proj_size", Retriever.projection_size)
  return Retriever(
    bert=encoder,
    shared_towers=shared,
    pooling="pooler",
    projection_size=read_number(size, "retriever_proj_size", where, int),
    # transformers has one epsilon for both.
    projection_norm_eps=encoder.layer_norm_eps,
    score_scale=score_scale,
  )


def _reader(
  encoder: BertConfig, config: Mapping[str, Any], where: str, name: str
) -> Reader:
  def number(key: str, usual: Any, kind: type) -> Any:
    return read_number(config.get(key, usual), key, where, kind)

  reader = usual_reader(encoder).clone(
    span_size=number("span_hidden_size", Reader.span_size, int),
    span_norm_eps=number("reader_layer_norm_eps", Reader.span_norm_eps, float),
    max_answer_width=number("max_span_width", Reader.max_answer_width, int),
  )
  if name in _SPAN_READERS:
    length = number("reader_seq_len", OPEN_QA_JOINT_LENGTH, int)
    reader = reader.clone(joint_length=min(length, encoder.max_positions))
  return reader


def _tower_rules(
  source: TensorSource, encoder: BertConfig, name: str, *, separate: bool
) -> tuple[tuple[Rule, ...], bool]:
  """The rules of the towers, and whether they share their parameters."""
  prefix = "" if name == "RealmEmbedder" else EMBEDDER

  def rules(tower: str, theirs: str) -> tuple[Rule, ...]:
    return hf_realm_names.embedder(
      encoder, ours=f"retriever/{tower}", theirs=theirs
    )

  query, block = SEPARATE_TOWERS
  if not any(key.startswith(QUERY_EMBEDDER) for key in source.shapes):
    towers = SEPARATE_TOWERS if separate else SHARED_TOWER
    return sum((rules(tower, prefix) for tower in towers), ()), not separate
  of_query, of_block = rules(query, QUERY_EMBEDDER), rules(block, EMBEDDER)
  if not separate and _are_equal(source, of_query, of_block):
    # A scorer without a query embedder of its own has its embedder twice.
    shared = rules(*SHARED_TOWER, EMBEDDER)
    return tuple(
      dataclasses.replace(rule, names=rule.names + twin.names)
      for rule, twin in zip(shared, of_query, strict=True)
    ), True
  return of_query + of_block, False


def _are_equal(
  source: TensorSource, one: tuple[Rule, ...], other: tuple[Rule, ...]
) -> bool:
  """Whether two towers have one and the same weights, as far as both do."""
  for first, second in zip(one, other, strict=True):
    held = [n for n in first.names + second.names if n in source.shapes]
    if len({source.shapes[n] for n in held}) > 1:
      return False
    arrays = [source.read(name) for name in held]
    if not all(np.array_equal(arrays[0], array) for array in arrays):
      return False
  return True


def _reader_rules(encoder: BertConfig, name: str) -> tuple[Rule, ...]:
  prefix = READER if name == "RealmForOpenQA" else ""
  has_spans = name in _SPAN_READERS
  rules = hf_realm_names.masked_lm(
    encoder, is_tied=not has_spans, theirs=prefix
  )
  return rules + hf_realm_names.span_head(theirs=prefix) if has_spans else rules


def _reader_leftovers(name: str) -> dict[str, str]:
  leftovers = {_below(f"{ENCODER}pooler..*", READER): "readers do not pool"}
  if name in _SPAN_READERS:
    # Theirs is not tied, and nothing trains it.
    leftovers[_below("cls.predictions.decoder.weight", READER)] = (
      f"{name} does not use it; the head here is tied to the word embeddings"
    )
  return leftovers
