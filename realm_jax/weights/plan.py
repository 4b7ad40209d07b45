"""The plan of an import: the model, and where each parameter comes from.

A plan is complete before anything is written.
"""

import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import (
  WordpieceVocabulary,
  has_capitals,
  vocabulary_of,
)
from realm_jax.weights import WeightsError, reading, tables
from realm_jax.weights.directory import Vocabulary, read_vocabulary
from realm_jax.weights.formats import (
  FORMATS,
  OF_RETRIEVER,
  ImportConfig,
  locate,
)
from realm_jax.weights.model import (
  BoundModel,
  default_reader,
  fresh_parameters,
  parameter_shapes,
)
from realm_jax.weights.reading import Tensors
from realm_jax.weights.tables import (
  PARTS,
  READER,
  RETRIEVER,
  System,
  Table,
  below,
)

# Tensors that are of no use here, whatever the input is.
UNUSED = {
  r"(.*[./])?embeddings\.(position|token_type)_ids": "computed, not stored",
  r"(.*[./])?cls[./]seq_relationship[./].*": "a next-sentence head",
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  "block_emb": "vectors of blocks, which are no weights",
}
# The role of an encoder that makes the part one of those that are offered.
_ROLES = {RETRIEVER: "query", READER: READER}
_PREFIXES = ("query_prefix", "block_prefix")


class Encoder(NamedTuple):
  """A BERT in another system, and what it can become.

  Attributes:
    prefix: Prefix of its embeddings in the names of the tensors.
    bert: Configuration without a vocabulary.
    roles: What it can be: a `query` tower, a `block` tower, the `reader`.
    table: Its modules and those around it, by our names in a tower or reader.
    head: Those of its masked-LM head, which only a reader has.
    retriever_fields: Fields of `Retriever` that the input says; prefixes are
      texts.
    reader_fields: Fields of `Reader` that the input says.
  """

  prefix: str
  bert: BertConfig
  roles: Sequence[str]
  table: Table
  head: Table = ()
  retriever_fields: Mapping[str, Any] = {}
  reader_fields: Mapping[str, Any] = {}


class Source(NamedTuple):
  """What an input holds.

  Attributes:
    tensors: Tensors by name.
    system: System whose spelling the names have.
    encoders: Encoders among the tensors.
    vocabularies: Vocabularies; there is none in some releases.
    block_vectors: Vectors [N, d] of blocks that were released with it.
    block_records: File of their texts.
  """

  tensors: Tensors
  system: System
  encoders: Sequence[Encoder]
  vocabularies: Sequence[Vocabulary]
  block_vectors: Rows | None = None
  block_records: Path | None = None


class Plan(NamedTuple):
  """A model, and where its parameters come from.

  Attributes:
    name: Name of what is imported, for people.
    model: Model to write.
    parts: Parts that are imported.
    source: What all inputs hold; its blocks are those of the block tower.
    table: Where the parameters of the model are among its tensors.
    ignore: Regular expressions of the user: see `ImportConfig`.
  """

  name: str
  model: BoundModel
  parts: Sequence[str]
  source: Source
  table: Table
  ignore: Sequence[str]

  def load(self, *, seed: int = 0) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns all parameters of the parts by path, and lines for the report.

    Raises:
      WeightsError: The tensors do not fit the model.
    """
    retriever, reader, _ = self.model
    shapes = parameter_shapes(retriever, reader, self.parts)
    parameters, lines = reading.read(
      self.source.tensors,
      self.table,
      shapes,
      system=self.source.system,
      allowed=dict.fromkeys(self.ignore, "allowed by --ignore") | UNUSED,
    )
    fresh = shapes.keys() - parameters.keys()
    parameters |= fresh_parameters(retriever, reader, fresh, seed=seed)
    said = ", ".join(f"{n}={getattr(retriever, n)}" for n in OF_RETRIEVER)
    lines.append(f"vectors: {said}; such flags change it")
    if retriever.normalize and retriever.score_scale == 1.0:
      lines.append(
        "score_scale: 1, which ranks blocks as the original model does; to "
        "train from vectors of length 1, raise SCORE_SCALE (20 is usual)"
      )
    return parameters, lines


def make_plan(config: ImportConfig) -> Plan:
  """Plans an import.

  Raises:
    WeightsError: The inputs cannot be read, or the choices do not fit them.
    VocabularyError: A vocabulary cannot be used.
  """
  _, opener = FORMATS[config.format]
  open_source = pkgutil.resolve_name(opener)
  source = of_blocks = open_source(locate(config.input))
  if config.block_input is not None:
    of_blocks = _below("block/", open_source(locate(config.block_input)))
  chosen = _choose_encoders(config, source, of_blocks)
  if of_blocks is not source:
    source = of_blocks._replace(
      tensors={**source.tensors, **of_blocks.tensors},
      encoders=[*source.encoders, *of_blocks.encoders],
      vocabularies=[*source.vocabularies, *of_blocks.vocabularies],
    )
  parts = sorted({path.partition("/")[0] for path in chosen}, key=PARTS.index)
  if RETRIEVER not in parts:
    source = source._replace(block_vectors=None)
  words = vocabulary_of(_pieces(config, source.vocabularies))
  table = []
  for path, one in chosen.items():
    first = next(iter(chosen.values()))
    _require_equal(first, one, {"bert": first.bert}, {"bert": one.bert})
    table += below(one.table, ours=f"{path}/")
    if path == READER:
      table += below(one.head, ours=f"{path}/")
  # What is left of them is not imported.
  for one in source.encoders:
    table += below([*one.table, *one.head], ours="unused/")
  retriever = _retriever(config, chosen, words)
  *_, last = chosen.values()
  reader = default_reader(last.bert).clone(**last.reader_fields)
  return Plan(
    f"{Path(config.input).resolve().name} ({config.format})",
    BoundModel.of(retriever, reader, words),
    parts,
    source,
    table,
    config.ignore,
  )


def _below(scope: str, source: Source) -> Source:
  """Returns a source whose tensors have a prefix before their names."""
  start = scope.replace("/", ".") if source.system == "torch" else scope
  return source._replace(
    tensors={start + name: t for name, t in source.tensors.items()},
    encoders=[
      one._replace(
        table=below(one.table, theirs=scope),
        head=below(one.head, theirs=scope),
      )
      for one in source.encoders
    ],
  )


def _choose_encoders(
  config: ImportConfig, own: Source, of_blocks: Source
) -> dict[str, Encoder]:
  """Returns the encoder of each tower and, at last, of the reader, by path."""

  def the_only(source: Source, role: str) -> Encoder:
    found = [
      one
      for one in source.encoders
      if role in one.roles and config.tensor_prefix in (None, one.prefix)
    ]
    if len(found) != 1:
      prefixes = ", ".join(repr(one.prefix) for one in found) or "none"
      raise WeightsError(
        f"{len(found)} encoders could be the {role} tower or the reader: "
        f"{prefixes}; choose one with --tensor_prefix, or name another input"
      )
    return found[0]

  roles = {role for one in own.encoders for role in one.roles}
  offered = [part for part in PARTS if _ROLES[part] in roles]
  parts = config.parts or offered
  if not {*parts} <= {*offered}:
    raise WeightsError(
      f"--parts={','.join(parts)}: this input gives {', '.join(offered)}"
    )
  if of_blocks is not own and RETRIEVER not in parts:
    raise WeightsError(
      f"--block_input={config.block_input} is for a retriever, and the parts "
      f"to import are {', '.join(parts)}; leave it out"
    )
  chosen = {}
  if RETRIEVER in parts:
    query, block = the_only(own, "query"), the_only(of_blocks, "block")
    chosen[f"{RETRIEVER}/{tables.SHARED_TOWER}"] = query
    if query is not block or config.separate_towers:
      _require_equal(query, block, *map(_shared_fields, (query, block)))
      chosen = {
        f"{RETRIEVER}/{tables.SEPARATE_TOWERS[role]}": one
        for role, one in (("query", query), ("block", block))
      }
  if READER in parts:
    chosen[READER] = the_only(own, READER)
  return chosen


def _shared_fields(encoder: Encoder) -> dict[str, Any]:
  """Returns the fields of a retriever that its towers share."""
  fields = encoder.retriever_fields.items()
  return {name: value for name, value in fields if name not in _PREFIXES}


def _require_equal(
  one: Encoder, other: Encoder, of_one: object, of_other: object
) -> None:
  if of_one != of_other:
    raise WeightsError(
      f"the encoders {one.prefix!r} and {other.prefix!r} differ where a model "
      f"has one value for both:\n  {of_one}\n  {of_other}"
    )


def _pieces(
  config: ImportConfig, found: Sequence[Vocabulary]
) -> tuple[str, ...]:
  """Returns the vocabulary, which all inputs must share."""
  if config.vocab is not None:
    found = [read_vocabulary(Path(config.vocab))]
  if not found:
    raise WeightsError(
      f"{config.input} has no vocabulary: pass --vocab; in Google's release it "
      "is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  for one in found:
    if one.cased != has_capitals(one.pieces):
      raise WeightsError(
        f"the tokenizer of {one.path} says that it is "
        f"{'cased' if one.cased else 'uncased'}, and its pieces have "
        f"{'no ' if one.cased else ''}capitals, by which a vocabulary here is "
        "cased or not. Use a model of the usual kind"
      )
    if one.pieces != found[0].pieces:
      raise WeightsError(
        f"{found[0].path} and {one.path} are different vocabularies; queries "
        "and blocks must share one"
      )
  return found[0].pieces


def _retriever(
  config: ImportConfig,
  encoders: Mapping[str, Encoder],
  words: WordpieceVocabulary,
) -> Retriever:
  """Returns the retriever as the user, or else the input, says."""
  first, *others = encoders.values()
  towers = encoders.keys() - {READER}
  fields = {"projection_size": None, **first.retriever_fields}
  if len(towers) == 2:
    fields["block_prefix"] = others[0].retriever_fields.get("block_prefix")
  if towers and fields["projection_size"] and config.projection_size:
    raise WeightsError(
      f"--projection_size={config.projection_size}: the input has a "
      f"projection, to {fields['projection_size']} dimensions; leave the flag "
      "out"
    )
  chosen = {name: getattr(config, name) for name in OF_RETRIEVER}
  fields |= {n: value for n, value in chosen.items() if value is not None}
  for name in _PREFIXES:
    text = fields.get(name)
    fields[name] = ids = tuple(words.encode(text)) if text else ()
    if words.unk_id in ids:
      raise WeightsError(
        f"--{name}={text!r} has words that the vocabulary cannot spell"
      )
  return Retriever(bert=first.bert, shared_towers=len(towers) < 2, **fields)
