"""A retriever and a reader from the weights of a plain BERT of any system."""

import dataclasses
import re
from collections.abc import Sequence

from realm_jax.conversion import names
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Dialect, Rule
from realm_jax.conversion.plan import (
  PARTS,
  READER,
  RETRIEVER,
  SEPARATE_TOWERS,
  SHARED_TOWER,
  ImportPlan,
  require_parts,
  usual_reader,
)
from realm_jax.conversion.tensors import TensorSource
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import POOLINGS, Retriever
from realm_jax.text.wordpieces import vocabulary_of

NO_HEAD = "the input has no masked-LM head"


@dataclasses.dataclass(frozen=True)
class BertWeights:
  """The weights of one BERT in another system.

  Attributes:
    source: Tensors of the checkpoint.
    dialect: Spelling of the tensors' names.
    config: Configuration of the encoder.
    prefix: Prefix of `embeddings/…` in the names: `bert/` or nothing.
    head: Name of the masked-LM head.
    leftovers: Reasons why some tensors are never of use: see `mapping.Feed`.
    where: Name of the checkpoint in errors and reports.
  """

  source: TensorSource
  dialect: Dialect
  config: BertConfig
  prefix: str
  head: str
  leftovers: dict[str, str]
  where: str

  @property
  def pooler(self) -> str:
    """The pooler's name, with slashes."""
    return f"{self.prefix}pooler"

  @property
  def has_head(self) -> bool:
    """Whether there is a masked-LM head."""
    return self.has_module(self.head)

  def has_module(self, name: str) -> bool:
    """Returns whether a module, named with slashes, has any tensor."""
    start = self.dialect.spell(f"{name}/")
    return any(tensor.startswith(start) for tensor in self.source.shapes)

  def all_of(self, module: str) -> str:
    """Returns a regular expression for the tensors of a module."""
    return re.escape(self.dialect.spell(f"{module}/")) + ".*"


@dataclasses.dataclass(frozen=True)
class TowerOptions:
  """How a retriever is made of BERT; None takes what the input says.

  Attributes:
    pooling: `pooler`, `cls` or `mean`.
    projection_size: Size of REALM's projection, which is added with random
      values; None adds none.
    normalize: Whether vectors have length 1.
    score_scale: Factor of the inner products.
    query_prefix: Text before each query.
    block_prefix: Text before each block.
    title_separator: Whether [SEP] separates title and body.
    token_types: Whether tokens after the first [SEP] are of type 1.
    separate_towers: Whether queries and blocks have separate towers.
  """

  pooling: str | None = None
  projection_size: int | None = None
  normalize: bool | None = None
  score_scale: float = 1.0
  query_prefix: str | None = None
  block_prefix: str | None = None
  title_separator: bool | None = None
  token_types: bool | None = None
  separate_towers: bool = False

  def __post_init__(self) -> None:
    if self.pooling is not None and self.pooling not in POOLINGS:
      raise ConversionError(
        f"--pooling={self.pooling}; want one of {', '.join(POOLINGS)}"
      )
    if self.projection_size is not None and self.projection_size < 1:
      raise ConversionError(
        f"--projection_size={self.projection_size}; want 1 or more, or leave "
        "it out for none"
      )


def plan_bert(
  weights: BertWeights,
  options: TowerOptions,
  *,
  source: str,
  pieces: tuple[str, ...],
  block_weights: BertWeights | None = None,
  parts: tuple[str, ...] = PARTS,
  notes: Sequence[str] = (),
) -> ImportPlan:
  """Plans the import of plain BERT weights.

  Args:
    weights: Weights of the reader and of the query tower, or of both towers.
    options: How vectors are made. Pooling None takes the pooler if there is
      one.
    source: Name of what is imported, for people.
    pieces: Vocabulary of the weights.
    block_weights: Weights of the block tower, if it has its own.
    parts: Parts to import.
    notes: Lines for the report.

  Raises:
    ConversionError: If the two towers have different sizes, or `parts` is not
      one or both of retriever and reader.
  """
  require_parts(parts, PARTS)
  if block_weights is not None:
    require_same_config(weights, block_weights)
  pooling, pooling_notes = _choose_pooling(weights, options)
  separate = options.separate_towers or block_weights is not None
  towers = SEPARATE_TOWERS if separate else SHARED_TOWER
  if RETRIEVER not in parts:
    towers = ()
  own_towers = towers if block_weights is None else towers[:1]
  feeds = [
    _feed(weights, own_towers, pooling=pooling, with_reader=READER in parts)
  ]
  if block_weights is not None and towers:
    feeds.append(
      _feed(block_weights, towers[1:], pooling=pooling, with_reader=False)
    )
  fresh = {"reader/span_head/.*": "BERT has no span head"}
  if not weights.has_head:
    fresh["reader/masked_lm_head/.*"] = NO_HEAD
  if options.projection_size is not None:
    fresh["retriever/[^/]*/projection(_norm)?/.*"] = "--projection_size"
  return ImportPlan(
    source=source,
    retriever=Retriever(
      bert=weights.config,
      shared_towers=not separate,
      pooling=pooling,
      projection_size=options.projection_size,
      normalize=bool(options.normalize),
      score_scale=options.score_scale,
      query_prefix=_ids(options.query_prefix, pieces, "--query_prefix"),
      block_prefix=_ids(options.block_prefix, pieces, "--block_prefix"),
      title_separator=options.title_separator is not False,
      token_types=options.token_types is not False,
    ),
    reader=usual_reader(weights.config),
    parts=parts,
    pieces=pieces,
    feeds=tuple(feeds),
    expected_fresh=fresh,
    notes=(*notes, *pooling_notes),
  )


def require_same_config(one: BertWeights, other: BertWeights) -> None:
  """Raises `ConversionError` for encoders of different configuration."""
  if one.config != other.config:
    raise ConversionError(
      f"{one.where} and {other.where} have encoders of different "
      "configuration, but a model has only one:"
      f"\n  {one.config}\n  {other.config}"
    )


def tower_rules(
  weights: BertWeights, pooling: str, tower: str
) -> tuple[Rule, ...]:
  """Returns the rules of a tower without projection."""
  return names.bert_tower(
    weights.dialect,
    weights.config,
    pooling=pooling,
    ours=f"{RETRIEVER}/{tower}",
    theirs=weights.prefix,
  )


def reader_rules(weights: BertWeights) -> tuple[Rule, ...]:
  """Returns the rules of a reader without span head."""
  dialect, config, theirs = weights.dialect, weights.config, weights.prefix
  if weights.has_head:
    return names.masked_lm(
      dialect, config, ours=READER, theirs=theirs, head=weights.head
    )
  return names.encoder(dialect, config, ours=f"{READER}/encoder", theirs=theirs)


def _choose_pooling(
  weights: BertWeights, options: TowerOptions
) -> tuple[str, list[str]]:
  """Returns the pooling, and notes on how vectors are made."""
  notes = []
  pooling = options.pooling
  if pooling is None:
    has_pooler = weights.has_module(weights.pooler)
    pooling = "pooler" if has_pooler else "cls"
    notes.append(
      f"pooling: {pooling} (the weights have {'a' if has_pooler else 'no'} "
      "pooler); --pooling chooses"
    )
  if options.normalize and options.score_scale == 1.0:
    notes.append(
      "score_scale: 1, which ranks blocks as the original model does; to train "
      "from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  return pooling, notes


def _feed(
  weights: BertWeights,
  towers: Sequence[str],
  *,
  pooling: str,
  with_reader: bool,
) -> Feed:
  """Returns what one checkpoint gives: towers, and perhaps the reader."""
  rules: list[Rule] = []
  unused = {}
  for tower in towers:
    rules += tower_rules(weights, pooling, tower)
  if not towers:
    unused[weights.all_of(weights.pooler)] = "readers have no pooler"
  elif pooling != "pooler":
    unused[weights.all_of(weights.pooler)] = (
      f"pooling {pooling!r} does not use the pooler"
    )
  if with_reader:
    rules += reader_rules(weights)
  else:
    unused[weights.all_of(weights.head)] = (
      "a reader's, which is not imported from these weights; see --parts"
    )
  return Feed(
    weights.source,
    tuple(rules),
    weights.leftovers | unused,
    where=weights.where,
  )


def _ids(
  text: str | None, pieces: tuple[str, ...], flag: str
) -> tuple[int, ...]:
  if not text:
    return ()
  vocabulary = vocabulary_of(pieces)
  ids = tuple(vocabulary.encode(text))
  if vocabulary.unk_id in ids:
    raise ConversionError(
      f"{flag}={text!r} has words that the vocabulary cannot spell"
    )
  return ids
