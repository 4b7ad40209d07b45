"""REALM in directories of Hugging Face: names of its tensors, and import.

| class | becomes |
| --- | --- |
| RealmEmbedder, RealmScorer | the retriever |
| RealmKnowledgeAugEncoder | the reader, with its masked-LM head |
| RealmReader | the reader, with its span head |
| RealmForOpenQA | both, and `block_emb` holds the vectors of blocks |

`realm.` is BERT, `cls.` is the projection of an embedder or else a masked-LM
head, and `qa_outputs.` scores spans.
"""

import dataclasses

import numpy as np

from realm_jax.conversion import names, planning
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.config_file import ConfigFile
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.config import dropout_note
from realm_jax.conversion.hugging_face.directory import (
  open_model,
  read_model_config,
)
from realm_jax.conversion.mapping import Feed, TensorSource
from realm_jax.conversion.names import HEAD, Dialect, Rules
from realm_jax.conversion.planning import ImportPlan, ImportSource
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# Prefixes in a scorer, and in the two parts of open QA.
EMBEDDER, QUERY_EMBEDDER, READER = "embedder.", "query_embedder.", "reader."
BLOCK_VECTORS = "block_emb"
# The parts of a model that a class holds.
PARTS_OF = {
  "RealmEmbedder": ("retriever",),
  "RealmScorer": ("retriever",),
  "RealmKnowledgeAugEncoder": ("reader",),
  "RealmReader": ("reader",),
  "RealmForOpenQA": ("retriever", "reader"),
}
# The classes whose reader scores spans.
SPAN_READERS = ("RealmReader", "RealmForOpenQA")

_ENCODER = "realm."
# The texts of the blocks, beside the weights.
_BLOCK_RECORDS = "block_records.npy"


def embedder_rules(config: BertConfig, tower: str, prefix: str = "") -> Rules:
  """Returns the rules of a RealmEmbedder, which is one of our towers."""
  return names.tower(
    Dialect.TORCH,
    config,
    tower,
    prefix + _ENCODER,
    projection=f"{prefix}cls/dense",
    norm=f"{prefix}cls/LayerNorm",
  )


def reader_rules(config: BertConfig, architecture: str) -> Rules:
  """Returns the rules of the reader in a class.

  The decoder of RealmKnowledgeAugEncoder is a copy of the word embeddings.
  Those of the classes that score spans are separate, and nothing uses them.
  """
  prefix = READER if architecture == "RealmForOpenQA" else ""
  has_spans = architecture in SPAN_READERS
  rules = names.reader(
    Dialect.TORCH,
    config,
    prefix + _ENCODER,
    head=prefix + HEAD,
    tied=not has_spans,
  )
  if has_spans:
    outputs = f"{prefix}qa_outputs"
    rules += names.span_head(
      Dialect.TORCH,
      projection=f"{outputs}/dense_intermediate",
      norm=f"{outputs}/layer_normalization",
      score=f"{outputs}/dense_output",
    )
  return rules


def plan_hf_realm(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Plans the import of a directory that `save_pretrained` wrote."""
  path = source.path
  config = read_model_config(path)
  name = _class_of(config)
  parts = source.choose_parts(PARTS_OF[name])
  encoder, pieces, tensors = open_model(
    path, config, default_activation="gelu_new"
  )
  rules: Rules = ()
  fresh: dict[str, str] = {}
  block_vectors = None
  shared = not options.separate_towers
  if "retriever" in parts:
    rules, shared = _tower_rules(tensors, encoder, name, shared=shared)
    if BLOCK_VECTORS in tensors.shapes:
      block_vectors = tensors.rows(BLOCK_VECTORS)
  if "reader" in parts:
    rules += reader_rules(encoder, name)
    if name not in SPAN_READERS:
      fresh["reader/span_head/.*"] = f"{name} has no span head"
  records = path / _BLOCK_RECORDS
  return ImportPlan(
    source=f"{path.resolve().name} ({source.kind}, {name})",
    retriever=Retriever(
      bert=encoder,
      shared_towers=shared,
      projection_size=config.size(
        "retriever_proj_size", Retriever.projection_size
      ),
      # transformers has one epsilon for both.
      projection_norm_eps=encoder.layer_norm_eps,
      score_scale=options.chosen_scale,
    ),
    reader=_reader(encoder, config, name),
    parts=parts,
    pieces=pieces,
    feeds=(Feed(tensors, rules, _leftovers(name, parts), str(path)),),
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
  reader = planning.usual_reader(encoder).clone(
    span_size=config.size("span_hidden_size", Reader.span_size),
    span_norm_eps=config.number("reader_layer_norm_eps", Reader.span_norm_eps),
    max_answer_width=config.size("max_span_width", Reader.max_answer_width),
  )
  if name in SPAN_READERS:
    length = config.size("reader_seq_len", planning.OPEN_QA_JOINT_LENGTH)
    reader = reader.clone(joint_length=min(length, encoder.max_positions))
  return reader


def _tower_rules(
  source: TensorSource, encoder: BertConfig, name: str, *, shared: bool
) -> tuple[Rules, bool]:
  """Returns the rules of the towers, and whether they share parameters."""
  query, block = planning.SEPARATE_TOWERS
  if not any(key.startswith(QUERY_EMBEDDER) for key in source.shapes):
    prefix = "" if name == "RealmEmbedder" else EMBEDDER
    rules: Rules = ()
    for tower in planning.SHARED_TOWER if shared else planning.SEPARATE_TOWERS:
      rules += embedder_rules(encoder, tower, prefix)
    return rules, shared
  of_query = embedder_rules(encoder, query, QUERY_EMBEDDER)
  of_block = embedder_rules(encoder, block, EMBEDDER)
  if shared and _are_equal(source, of_query, of_block):
    # A scorer without a separate query embedder has its embedder twice.
    return tuple(
      dataclasses.replace(rule, names=rule.names + twin.names)
      for rule, twin in zip(
        embedder_rules(encoder, *planning.SHARED_TOWER, EMBEDDER),
        of_query,
        strict=True,
      )
    ), True
  return of_query + of_block, False


def _are_equal(source: TensorSource, one: Rules, other: Rules) -> bool:
  """Returns whether two towers have the same weights where both have any."""
  for first, second in zip(one, other, strict=True):
    held = [n for n in first.names + second.names if n in source.shapes]
    arrays = [source.read(name) for name in held]
    if not all(np.array_equal(arrays[0], array) for array in arrays[1:]):
      return False
  return True


def _leftovers(name: str, parts: tuple[str, ...]) -> dict[str, str]:
  """Returns the reasons why some tensors of a class are not used."""
  any_prefix = f"({EMBEDDER}|{QUERY_EMBEDDER}|{READER})?"
  leftovers = {
    rf"{any_prefix}{_ENCODER}embeddings.(position|token_type)_ids": (
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
    leftovers[f"({READER})?{_ENCODER}pooler..*"] = "readers have no pooler"
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
