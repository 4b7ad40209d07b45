"""The plan of an import: the model, and where each parameter comes from.

A plan is complete before anything is written.
"""

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, vocabulary_of
from realm_jax.weights import WeightsError, reading, tables
from realm_jax.weights.config import Vocabulary, read_vocabulary
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
from realm_jax.weights.tables import READER, RETRIEVER, System, Table, below

# Tensors that are of no use here, whatever the input is.
UNUSED = {
  r"(.*[./])?embeddings\.(position|token_type)_ids": "computed, not stored",
  r"(.*[./])?cls[./]seq_relationship[./].*": "a next-sentence head",
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  "block_emb": "vectors of blocks, which are no weights",
}
_PREFIXES = ("query_prefix", "block_prefix")


class Encoder(NamedTuple):
  """A BERT in another system, and what it can become.

  Attributes:
    prefix: Prefix of its embeddings in the names of the tensors.
    bert: Configuration without a vocabulary.
    roles: What it can be: a `query` tower, a `block` tower, the `reader`.
    tower: Its modules and those around it, by our names in a tower.
    reader: The same, by our names in a reader.
    retriever_fields: Fields of `Retriever` that the input says; prefixes are
      texts.
    reader_fields: Fields of `Reader` that the input says.
  """

  prefix: str
  bert: BertConfig
  roles: Sequence[str]
  tower: Table
  reader: Table
  retriever_fields: Mapping[str, Any] = {}
  reader_fields: Mapping[str, Any] = {}


class Source(NamedTuple):
  """What an input holds.

  Attributes:
    tensors: Tensors by name.
    system: System whose spelling the names have.
    encoders: Encoders among the tensors.
    vocabularies: Vocabularies; there is none in some releases.
    notes: Lines for the report.
    block_vectors: Vectors [N, d] of blocks that were released with it.
    block_records: File of their texts.
  """

  tensors: Tensors
  system: System
  encoders: Sequence[Encoder]
  vocabularies: Sequence[Vocabulary]
  notes: Sequence[str] = ()
  block_vectors: Rows | None = None
  block_records: Path | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
  """A model, and where its parameters come from.

  Attributes:
    name: Name of what is imported, for people.
    model: Model to write.
    parts: Parts that are imported.
    tensors, table, system, allowed: See `reading.read`.
    notes: Lines for the report that say what was chosen and why.
    block_vectors: Vectors [N, d] of blocks that were released with it.
    block_records: File of their texts.
  """

  name: str
  model: BoundModel
  parts: Sequence[str]
  tensors: Tensors
  table: Table
  system: System
  allowed: Mapping[str, str]
  notes: Sequence[str]
  block_vectors: Rows | None
  block_records: Path | None

  def load(self, *, seed: int = 0) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns all parameters of the parts by path, and lines for the report.

    Raises:
      WeightsError: The tensors do not fit the model.
    """
    retriever, reader, _ = self.model
    shapes = parameter_shapes(retriever, reader, self.parts)
    parameters, report = reading.read(
      self.tensors,
      self.table,
      shapes,
      system=self.system,
      allowed=self.allowed,
    )
    parameters |= fresh_parameters(retriever, reader, report.fresh, seed=seed)
    return parameters, report.lines(self.tensors, shapes)


def make_plan(config: ImportConfig) -> Plan:
  """Plans an import.

  Raises:
    WeightsError: The inputs cannot be read, or the choices do not fit them.
    VocabularyError: A vocabulary cannot be used.
  """
  open_source = pkgutil.resolve_name(FORMATS[config.format].opener)
  sources = [own := open_source(locate(config.input))]
  if config.block_input is not None:
    sources.append(_below("block/", open_source(locate(config.block_input))))
  tensors = {name: t for one in sources for name, t in one.tensors.items()}
  towers, readers = _choose_encoders(config, own, sources[-1])
  first, *others = [*towers.values(), *readers]
  words = vocabulary_of(_pieces(config, sources))
  for encoder in (first, *others):
    size = words.vocab_size
    require_vocabulary_size(tensors, encoder.tower, own.system, size)
    _require_equal(first, encoder, {"bert": first.bert}, {"bert": encoder.bert})
  retriever = _retriever(config, towers, first, words)
  reader = default_reader(first.bert).clone(
    **[first, *others][-1].reader_fields
  )
  return Plan(
    name=f"{Path(config.input).resolve().name} ({config.format})",
    model=BoundModel.of(retriever, reader, words),
    parts=[*([RETRIEVER] if towers else []), *([READER] if readers else [])],
    tensors=tensors,
    table=[
      *(
        module
        for name, encoder in towers.items()
        for module in below(encoder.tower, ours=f"{RETRIEVER}/{name}/")
      ),
      *(m for e in readers for m in below(e.reader, ours=f"{READER}/")),
      # What is left of these is not imported.
      *(
        module
        for source in sources
        for encoder in source.encoders
        for module in below([*encoder.tower, *encoder.reader], ours="unused/")
      ),
    ],
    system=own.system,
    allowed=dict.fromkeys(config.ignore, "allowed by --ignore") | UNUSED,
    notes=[*own.notes, *_notes(retriever)],
    # The tower that embeds blocks made their vectors, too.
    block_vectors=sources[-1].block_vectors if towers else None,
    block_records=sources[-1].block_records,
  )


def _below(scope: str, source: Source) -> Source:
  """Returns a source whose tensors have a prefix before their names."""
  start = scope.replace("/", ".") if source.system == "torch" else scope
  return source._replace(
    tensors={start + name: t for name, t in source.tensors.items()},
    encoders=[
      encoder._replace(
        tower=below(encoder.tower, theirs=scope),
        reader=below(encoder.reader, theirs=scope),
      )
      for encoder in source.encoders
    ],
  )


def _choose_encoders(
  config: ImportConfig, own: Source, of_blocks: Source
) -> tuple[dict[str, Encoder], list[Encoder]]:
  """Returns the encoder of each tower by its name, and that of the reader."""

  def the_only(source: Source, role: str) -> Encoder:
    found = [
      encoder
      for encoder in source.encoders
      if role in encoder.roles
      and config.tensor_prefix in (None, encoder.prefix)
    ]
    if len(found) != 1:
      prefixes = ", ".join(repr(encoder.prefix) for encoder in found) or "none"
      raise WeightsError(
        f"{len(found)} encoders could be the {role} tower or the reader: "
        f"{prefixes}; choose one with --tensor_prefix, or name another input"
      )
    return found[0]

  roles = {role for encoder in own.encoders for role in encoder.roles}
  offered = [
    part
    for part, role in ((RETRIEVER, "query"), (READER, READER))
    if role in roles
  ]
  parts = config.parts or offered
  if not {*parts} <= {*offered}:
    raise WeightsError(
      f"--parts={','.join(parts)}: this input gives {', '.join(offered)}"
    )
  readers = [the_only(own, READER)] if READER in parts else []
  if RETRIEVER not in parts:
    if config.block_input is not None:
      raise WeightsError(
        f"--block_input={config.block_input} is for a retriever, and the parts "
        f"to import are {', '.join(parts)}; leave it out"
      )
    return {}, readers
  query, block = the_only(own, "query"), the_only(of_blocks, "block")
  if query is block and not config.separate_towers:
    return {tables.SHARED_TOWER: query}, readers
  _require_equal(query, block, *map(_without_prefixes, (query, block)))
  return {"query_tower": query, "block_tower": block}, readers


def _without_prefixes(encoder: Encoder) -> dict[str, Any]:
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


def _pieces(config: ImportConfig, sources: Sequence[Source]) -> tuple[str, ...]:
  """Returns the vocabulary, which all inputs must share."""
  found = [one for source in sources for one in source.vocabularies]
  if config.vocab is not None:
    found = [read_vocabulary(Path(config.vocab))]
  if not found:
    raise WeightsError(
      f"{config.input} has no vocabulary: pass --vocab; in Google's release it "
      "is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  for one in found:
    if one.cased:
      raise WeightsError(
        f"{one.path} is a cased model's (do_lower_case in its tokenizer's "
        "files, or pieces with capitals), and wordpieces here are uncased "
        "BERT's. Use the uncased model"
      )
    if one.pieces != found[0].pieces:
      raise WeightsError(
        f"{found[0].path} and {one.path} are different vocabularies; queries "
        "and blocks must share one"
      )
  return found[0].pieces


def _retriever(
  config: ImportConfig,
  towers: Mapping[str, Encoder],
  first: Encoder,
  words: WordpieceVocabulary,
) -> Retriever:
  """Returns the retriever as the user, or else the input, says."""
  said = {**first.retriever_fields}
  for encoder in [*towers.values()][1:]:
    said["block_prefix"] = encoder.retriever_fields.get("block_prefix")
  chosen = {
    name: value
    for name in OF_RETRIEVER
    if (value := getattr(config, name)) is not None
  }
  if towers and "projection_size" in chosen and "projection_size" in said:
    raise WeightsError(
      f"--projection_size={config.projection_size}: the input has a "
      f"projection, to {said['projection_size']} dimensions; leave the flag out"
    )
  fields = {"projection_size": None, **said, **chosen}
  for name in _PREFIXES:
    text = fields.get(name)
    ids = tuple(words.encode(text)) if text else ()
    fields[name] = ids
    if words.unk_id in ids:
      raise WeightsError(
        f"--{name}={text!r} has words that the vocabulary cannot spell"
      )
  return Retriever(bert=first.bert, shared_towers=len(towers) < 2, **fields)


def _notes(retriever: Retriever) -> list[str]:
  """Returns lines that say how vectors are made."""
  said = ", ".join(
    f"{name}={getattr(retriever, name)}" for name in OF_RETRIEVER
  )
  notes = [f"vectors: {said}; flags of these names change it"]
  if retriever.normalize and retriever.score_scale == 1.0:
    notes.append(
      "score_scale: 1, which ranks blocks as the original model does; to train "
      "from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  return notes


def require_vocabulary_size(
  tensors: Tensors, table: Table, system: System, num_pieces: int
) -> None:
  """Checks that the vocabulary has a piece for each word embedding.

  Raises:
    WeightsError: It has more or fewer.
  """
  for place in tables.places(table, system):
    for name in place.names:
      if place.path.endswith("word_embeddings") and name in tensors:
        rows = tensors[name].shape[0]
        if rows != num_pieces:
          raise WeightsError(
            f"{name} has {rows} word embeddings, and the vocabulary "
            f"{num_pieces} pieces: is it another model's vocabulary? Where the "
            "last rows are padding, name them in a copy of vocab.txt by as "
            f"many lines at its end ([unused_row_{num_pieces}] and so on)"
          )
