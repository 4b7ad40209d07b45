"""The plan of an import: the model, and where each parameter comes from.

A plan is complete before anything is written.
"""

import dataclasses
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.indexes.protocol import Rows
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, vocabulary_of
from realm_jax.weights import WeightsError, reading, tables
from realm_jax.weights.config import read_uncased_pieces
from realm_jax.weights.formats import FORMATS, OF_TOWERS, ImportConfig, locate
from realm_jax.weights.model import (
  BoundModel,
  default_reader,
  fresh_parameters,
  parameter_shapes,
)
from realm_jax.weights.reading import Tensors
from realm_jax.weights.tables import READER, RETRIEVER, Encoder, System

# Tensors that are of no use here, whatever the input is.
_UNUSED = {
  r"(.*[./])?embeddings\.(position|token_type)_ids": "computed, not stored",
  r"(.*[./])?cls[./]seq_relationship[./].*": "a next-sentence head",
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  "block_emb": "vectors of blocks, which are no weights",
}


@dataclasses.dataclass(frozen=True)
class Source:
  """What an input holds.

  Attributes:
    tensors: Tensors by name.
    system: System whose spelling the names have.
    encoders: Encoders among the tensors.
    vocabularies: Vocabularies by file; there is none in some releases.
    towers: Fields of `ImportConfig` that the input says of its towers.
    reader: Fields of `Reader` that the input says.
    notes: Lines for the report.
    block_vectors: Vectors [N, d] of blocks that were released with it.
    block_records: File of their texts.
  """

  tensors: Tensors
  system: System
  encoders: Sequence[Encoder]
  vocabularies: Mapping[Path, tuple[str, ...]]
  towers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  reader: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  notes: Sequence[str] = ()
  block_vectors: Rows | None = None
  block_records: Path | None = None

  def of(self, part: str) -> list[Encoder]:
    """Returns the encoders that can become a part of a model."""
    return [encoder for encoder in self.encoders if part in encoder.parts]


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
  table: tables.Table
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
  own: Source = open_source(config, locate(config.input), "")
  of_blocks = own
  if config.block_input is not None:
    scope = "block." if own.system == "torch" else "block/"
    of_blocks = open_source(config, locate(config.block_input), scope)
  tensors = {**own.tensors, **of_blocks.tensors}
  parts = _choose_parts(config, own)
  words = vocabulary_of(_vocabulary(config, own, of_blocks))
  said = _tower_options(config, own, of_blocks)
  notes = [*own.notes]

  towers, readers = {}, own.of(READER) if READER in parts else []
  if RETRIEVER in parts:
    separate = config.separate_towers
    towers = _choose_towers(own, of_blocks, separate=separate)
  if len(readers) > 1:
    found = ", ".join(encoder.prefix for encoder in readers)
    raise WeightsError(f"several readers: {found}; give one of them as --input")
  used = [*towers.values(), *readers]
  for encoder in used:
    require_vocabulary_size(tensors, encoder, own.system, words.vocab_size)
    if encoder.config != used[0].config:
      raise WeightsError(
        f"the encoders {used[0].prefix!r} and {encoder.prefix!r} are of "
        "different configuration, but a model has only one:"
        f"\n  {used[0].config}\n  {encoder.config}"
      )

  pooling = said["pooling"]
  if pooling is None:
    has_pooler = tables.has(tensors, used[0].pooler, own.system)
    pooling = "pooler" if has_pooler else "cls"
    notes.append(
      f"pooling: {pooling} (the weights have {'a' if has_pooler else 'no'} "
      "pooler); --pooling chooses"
    )
  allowed = dict.fromkeys(config.ignore, "allowed by --ignore") | _UNUSED
  size, eps = said["projection_size"], Retriever.projection_norm_eps
  if towers and (projection := used[0].projection):
    if config.projection_size is not None:
      raise WeightsError(
        f"--projection_size={size}: the input has a projection, to "
        f"{projection.size} dimensions; leave the flag out"
      )
    size, eps = projection.size, projection.norm_eps
  elif size is not None:
    allowed["retriever/[^/]*/projection(_norm)?/.*"] = "--projection_size"
  scale = said["score_scale"] or 1.0
  if said["normalize"] and scale == 1.0:
    notes.append(
      "score_scale: 1, which ranks blocks as the original model does; to train "
      "from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  retriever = Retriever(
    bert=used[0].config,
    shared_towers=len(towers) < 2,
    pooling=pooling,
    projection_size=size,
    projection_norm_eps=eps,
    normalize=bool(said["normalize"]),
    score_scale=scale,
    query_prefix=_ids(said["query_prefix"], words, "--query_prefix"),
    block_prefix=_ids(said["block_prefix"], words, "--block_prefix"),
    title_separator=said["title_separator"] is not False,
    token_types=said["token_types"] is not False,
  )
  table: list[tables.Module] = []
  for name, encoder in towers.items():
    table += tables.tower(name, encoder, pooling)
  for encoder in readers:
    table += tables.reader(encoder)
    if encoder.span_head is None:
      allowed["reader/span_head/.*"] = "the input has no span head"
    if not encoder.head:
      allowed["reader/masked_lm_head/.*"] = "the input has no masked-LM head"
  encoders = [*own.encoders, *of_blocks.encoders]
  return Plan(
    name=f"{Path(config.input).resolve().name} ({config.format})",
    model=BoundModel.of(
      retriever, default_reader(used[0].config).clone(**own.reader), words
    ),
    parts=parts,
    tensors=tensors,
    table=table,
    system=own.system,
    allowed=allowed | _not_imported(table, encoders, used, own.system),
    notes=notes,
    # The tower that embeds blocks made their vectors, too.
    block_vectors=of_blocks.block_vectors if towers else None,
    block_records=of_blocks.block_records,
  )


def _choose_parts(config: ImportConfig, own: Source) -> Sequence[str]:
  present = [part for part in tables.PARTS if own.of(part)]
  parts = list(config.parts or present)
  if not set(parts) <= set(present):
    raise WeightsError(
      f"--parts={','.join(parts)}: this input gives {', '.join(present)}"
    )
  if config.block_input is not None and RETRIEVER not in parts:
    raise WeightsError(
      f"--block_input={config.block_input} is for a retriever, and the parts "
      f"to import are {', '.join(parts)}; leave it out, or import the "
      "retriever too"
    )
  return parts


def _vocabulary(
  config: ImportConfig, own: Source, of_blocks: Source
) -> tuple[str, ...]:
  """Returns the vocabulary, which all inputs must share."""
  if config.vocab is not None:
    return read_uncased_pieces(Path(config.vocab))
  found = {**own.vocabularies, **of_blocks.vocabularies}
  if not found:
    raise WeightsError(
      f"{config.input} has no vocabulary: pass --vocab; in Google's release it "
      "is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  if len(set(found.values())) > 1:
    raise WeightsError(
      f"{' and '.join(map(str, found))} are different vocabularies; queries "
      "and blocks must share one"
    )
  return next(iter(found.values()))


def _tower_options(
  config: ImportConfig, own: Source, of_blocks: Source
) -> dict[str, Any]:
  """Returns how vectors are made: what the user says, or else the inputs."""
  names = (*OF_TOWERS, "score_scale")
  said = {**own.towers, "block_prefix": of_blocks.towers.get("block_prefix")}
  theirs = {**of_blocks.towers, "query_prefix": said.get("query_prefix")}
  if any(said.get(name) != theirs.get(name) for name in names):
    raise WeightsError(
      f"{config.input} and {config.block_input} make vectors in different "
      "ways; a retriever has one for both"
    )
  options = {name: getattr(config, name) for name in names}
  return {n: said.get(n) if v is None else v for n, v in options.items()}


def _choose_towers(
  own: Source, of_blocks: Source, *, separate: bool
) -> dict[str, Encoder]:
  """Chooses the encoder of each tower, by the tower's name."""
  queries, blocks = own.of(RETRIEVER), of_blocks.of(RETRIEVER)
  queries = [e for e in queries if e.only_queries] or queries
  blocks = [e for e in blocks if not e.only_queries] or blocks
  for name, found in (("queries", queries), ("blocks", blocks)):
    if len(found) != 1:
      prefixes = ", ".join(encoder.prefix for encoder in found) or "none"
      raise WeightsError(
        f"{len(found)} encoders could embed {name}: {prefixes}; want one in "
        "--input, or in --block_input for blocks"
      )
  chosen = [*queries, *blocks]
  if queries == blocks and not separate:
    return dict.fromkeys(tables.SHARED_TOWER, chosen[0])
  kinds = [
    e.projection and (e.projection.size, e.projection.norm_eps) for e in chosen
  ]
  if kinds[0] != kinds[1]:
    raise WeightsError(
      f"the two towers project differently (size, epsilon): {kinds}; a "
      "retriever has one projection for both"
    )
  return dict(zip(tables.SEPARATE_TOWERS, chosen, strict=True))


def require_vocabulary_size(
  tensors: Tensors, encoder: Encoder, system: System, num_pieces: int
) -> None:
  """Checks that the vocabulary has a piece for each word embedding."""
  words = next(tables.places(tables.encoder("", encoder), system))
  name = words.names[0]
  rows = tensors[name].shape[0]
  if rows != num_pieces:
    raise WeightsError(
      f"{name} has {rows} word embeddings, and the vocabulary {num_pieces} "
      "pieces: is it another model's vocabulary? Where the last rows are "
      "padding, name them in a copy of vocab.txt by as many lines at its end "
      f"([unused_row_{num_pieces}] and so on)"
    )


def _not_imported(
  table: tables.Table,
  encoders: Sequence[Encoder],
  used: Sequence[Encoder],
  system: System,
) -> dict[str, str]:
  """Returns patterns for the tensors of modules that the table leaves out."""
  unused = {}
  for encoder in encoders:
    modules = encoder.around
    if encoder not in used:
      modules += (encoder.prefix + part for part in ("embeddings", "encoder"))
    for module in modules:
      if not any(f"{m.theirs}/".startswith(f"{module}/") for m in table):
        pattern = f"{re.escape(tables.start_of(module, system))}.*"
        unused[pattern] = "of no use to the parts that are imported"
  return unused


def _ids(
  text: str | None, words: WordpieceVocabulary, flag: str
) -> tuple[int, ...]:
  ids = tuple(words.encode(text)) if text else ()
  if words.unk_id in ids:
    raise WeightsError(
      f"{flag}={text!r} has words that the vocabulary cannot spell"
    )
  return ids
