"""Imports REALM from directories of Hugging Face.

| class | becomes |
| --- | --- |
| RealmEmbedder, RealmScorer | the retriever |
| RealmKnowledgeAugEncoder | the reader, with its masked-LM head |
| RealmReader | the reader, with its span head |
| RealmForOpenQA | both, and `block_emb` holds the vectors of blocks |
"""

import dataclasses
from pathlib import Path

import numpy as np

from realm_jax.conversion.config_file import ConfigFile, read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import realm_names
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
from realm_jax.conversion.hugging_face.realm_names import (
  BLOCK_VECTORS,
  EMBEDDER,
  ENCODER,
  PARTS_OF,
  QUERY_EMBEDDER,
  READER,
  SPAN_READERS,
)
from realm_jax.conversion.hugging_face.tokenizer import read_vocabulary
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
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# The texts of the blocks, beside the weights.
_BLOCK_RECORDS = "block_records.npy"


def plan_hf_realm(
  input_dir: Path,
  *,
  parts: tuple[str, ...] | None = None,
  separate_towers: bool = False,
  score_scale: float = 1.0,
) -> ImportPlan:
  """Plans the import of a directory.

  Args:
    input_dir: Directory that `save_pretrained` wrote, with the vocabulary.
    parts: Parts to import; None takes all that the class has.
    separate_towers: Whether to start two towers from shared weights.
    score_scale: Factor of inner products.

  Raises:
    ConversionError: If it is no REALM that our models can express.
    VocabularyError: If its vocabulary cannot be used.
  """
  require_directory(input_dir)
  config = read_config_file(input_dir / CONFIG)
  name = _class_of(config)
  parts = PARTS_OF[name] if parts is None else parts
  require_parts(parts, PARTS_OF[name])
  pieces = read_vocabulary(input_dir)
  require_vocabulary_size(config, len(pieces))
  encoder = read_bert_config(config, default_activation="gelu_new")
  source = open_tensors(input_dir)
  rules: tuple[Rule, ...] = ()
  fresh: dict[str, str] = {}
  block_vectors = None
  shared = not separate_towers
  if "retriever" in parts:
    rules, shared = _tower_rules(
      source, encoder, name, separate=separate_towers
    )
    if BLOCK_VECTORS in source.shapes:
      block_vectors = source.rows(BLOCK_VECTORS)
  if "reader" in parts:
    rules += realm_names.reader(encoder, name)
    if name not in SPAN_READERS:
      fresh["reader/span_head/.*"] = f"{name} has no span head"
  records = input_dir / _BLOCK_RECORDS
  return ImportPlan(
    source=f"{input_dir.resolve().name} (hf_realm, {name})",
    retriever=Retriever(
      bert=encoder,
      shared_towers=shared,
      pooling="pooler",
      projection_size=config.size(
        "retriever_proj_size", Retriever.projection_size
      ),
      # transformers has one epsilon for both.
      projection_norm_eps=encoder.layer_norm_eps,
      score_scale=score_scale,
    ),
    reader=_reader(encoder, config, name),
    parts=parts,
    pieces=pieces,
    feeds=(Feed(source, rules, _leftovers(name, parts), str(input_dir)),),
    expected_fresh=fresh,
    notes=(f"class: {name}", *dropout_note(config)),
    block_vectors=block_vectors,
    block_records=records if records.is_file() else None,
  )


def _class_of(config: ConfigFile) -> str:
  kind = config.get("model_type")
  named = config.get("architectures") or ["nothing"]
  name = str(named[0]) if isinstance(named, list) else ""
  if kind != "realm" or name not in PARTS_OF:
    raise ConversionError(
      f"{config.where} has model_type={kind!r} and architectures={named}; "
      f"--from=hf_realm wants 'realm' and one of {', '.join(PARTS_OF)}"
    )
  return name


def _reader(encoder: BertConfig, config: ConfigFile, name: str) -> Reader:
  reader = usual_reader(encoder).clone(
    span_size=config.size("span_hidden_size", Reader.span_size),
    span_norm_eps=config.number("reader_layer_norm_eps", Reader.span_norm_eps),
    max_answer_width=config.size("max_span_width", Reader.max_answer_width),
  )
  if name in SPAN_READERS:
    length = config.size("reader_seq_len", OPEN_QA_JOINT_LENGTH)
    reader = reader.clone(joint_length=min(length, encoder.max_positions))
  return reader


def _tower_rules(
  source: TensorSource, encoder: BertConfig, name: str, *, separate: bool
) -> tuple[tuple[Rule, ...], bool]:
  """Returns the rules of the towers, and whether they share parameters."""

  def rules(tower: str, theirs: str) -> tuple[Rule, ...]:
    return realm_names.embedder(encoder, tower=tower, theirs=theirs)

  query, block = SEPARATE_TOWERS
  if not any(key.startswith(QUERY_EMBEDDER) for key in source.shapes):
    prefix = "" if name == "RealmEmbedder" else EMBEDDER
    towers = SEPARATE_TOWERS if separate else SHARED_TOWER
    return sum((rules(tower, prefix) for tower in towers), ()), not separate
  of_query, of_block = (
    rules(query, QUERY_EMBEDDER),
    rules(block, EMBEDDER),
  )
  if not separate and _are_equal(source, of_query, of_block):
    # A scorer without a separate query embedder has its embedder twice.
    shared = rules(*SHARED_TOWER, EMBEDDER)
    return tuple(
      dataclasses.replace(rule, names=rule.names + twin.names)
      for rule, twin in zip(shared, of_query, strict=True)
    ), True
  return of_query + of_block, False


def _are_equal(
  source: TensorSource, one: tuple[Rule, ...], other: tuple[Rule, ...]
) -> bool:
  """Returns whether two towers have the same weights where both have any."""
  for first, second in zip(one, other, strict=True):
    held = [n for n in first.names + second.names if n in source.shapes]
    if len({source.shapes[n] for n in held}) > 1:
      return False
    arrays = [source.read(name) for name in held]
    if not all(np.array_equal(arrays[0], array) for array in arrays):
      return False
  return True


def _leftovers(name: str, parts: tuple[str, ...]) -> dict[str, str]:
  """Returns the reasons why some tensors of a class are not used."""
  any_prefix = f"({EMBEDDER}|{QUERY_EMBEDDER}|{READER})?"
  leftovers = {
    rf"{any_prefix}{ENCODER}embeddings.(position|token_type)_ids": (
      "computed here, not stored"
    )
  }
  if "retriever" in parts:
    leftovers[f"({EMBEDDER}|{QUERY_EMBEDDER})?cls.predictions..*"] = (
      "a head that embedders have and do not use"
    )
  else:
    leftovers[f"{EMBEDDER}.*"] = "the retriever's; see --parts"
  if "reader" in parts:
    leftovers[f"({READER})?{ENCODER}pooler..*"] = "readers have no pooler"
    if name in SPAN_READERS:
      # Theirs is not tied, and nothing trains it.
      leftovers[f"({READER})?cls.predictions.decoder.weight"] = (
        f"{name} does not use it; the head here is tied to the word embeddings"
      )
  else:
    leftovers[f"{READER}.*"] = "the reader's; see --parts"
  if name == "RealmForOpenQA":
    leftovers[BLOCK_VECTORS] = "vectors of blocks, which are no weights"
  return leftovers
