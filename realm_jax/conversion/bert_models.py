"""A retriever and a reader from plain BERT weights, of whatever system."""

import dataclasses
import re
from collections.abc import Sequence

from realm_jax.conversion import names
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Dialect, Rule
from realm_jax.conversion.plan import (
  PARTS,
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
  """One BERT elsewhere.

  Attributes:
    source: its tensors.
    dialect: how it spells names.
    config: the encoder.
    prefix: what precedes `embeddings/…` in its names: `bert/` or nothing.
    head: the masked-LM head's name there.
    leftovers: tensors of no use in any case: see `mapping.Feed`.
    where: what to call it.
  """

  source: TensorSource
  dialect: Dialect
  config: BertConfig
  prefix: str
  head: str
  leftovers: dict[str, str]
  where: str

  def has_module(self, name: str) -> bool:
    """Whether any tensor is of the module, written with slashes."""
    start = self.dialect.spell(f"{name}/")
    return any(found.startswith(start) for found in self.source.shapes)

  @property
  def pooler(self) -> str:
    """The pooler's name, with slashes."""
    return f"{self.prefix}pooler"


@dataclasses.dataclass(frozen=True)
class TowerOptions:
  """How a retriever is made of BERT; None takes what the input says.

  Attributes:
    pooling: `pooler`, `cls` or `mean`.
    projection_size: adds REALM's projection, which starts afresh.
    normalize: whether vectors have length 1.
    score_scale: multiplies inner products.
    query_prefix: text before each query …
    block_prefix: … and before each block.
    title_separator: whether a [SEP] stands between title and body.
    token_types: whether tokens after the first [SEP] are of type 1.
    separate_towers: whether queries and blocks have towers of their own.
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

  def __post_init__(self):
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
  """The plan of an import of plain BERT weights.

  Args:
    weights: of the query tower, or of both, and of the reader.
    options: how vectors are made; `pooling` None takes the pooler if there
      is one.
    source: what is imported, for people.
    pieces: the vocabulary of the weights.
    block_weights: of the block tower, where it has its own.
    parts: which to import.
    notes: lines for the report.

  Raises:
    ConversionError: the two towers are of different sizes, or `parts` is not
      one or both of retriever and reader.
  """
  require_parts(parts, PARTS)
  notes = list(notes)
  separate = options.separate_towers or block_weights is not None
  if block_weights is not None and block_weights.config != weights.config:
    raise ConversionError(
      f"{block_weights.where} and {weights.where} have encoders of different "
      f"configuration, where a retriever has one:\n  {block_weights.config}\n  "
      f"{weights.config}"
    )
  pooling = options.pooling
  if pooling is None:
    pooling = "pooler" if weights.has_module(weights.pooler) else "cls"
    notes.append(
      f"pooling: {pooling} (the weights have "
      f"{'a' if pooling == 'pooler' else 'no'} pooler); --pooling chooses"
    )
  if options.normalize and options.score_scale == 1.0:
    notes.append(
      "score_scale: 1, which orders blocks as at home; to train from vectors "
      "of length 1, raise SCORE_SCALE (20 is usual)"
    )
  retriever = Retriever(
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
  )
  towers = SEPARATE_TOWERS if separate else SHARED_TOWER
  query_towers = SHARED_TOWER if not separate else SEPARATE_TOWERS[:1]
  own_towers = towers if block_weights is None else query_towers

  has_head = weights.has_module(weights.head)
  rules: list[Rule] = []
  unused: dict[str, str] = {}
  if "retriever" in parts:
    for tower in own_towers:
      rules += tower_rules(weights, pooling, tower)
  if "retriever" not in parts or pooling != "pooler":
    unused[_all_of(weights, weights.pooler)] = (
      f"pooling {pooling!r} does not use the pooler"
      if "retriever" in parts
      else "readers have no pooler"
    )
  if "reader" in parts:
    rules += reader_rules(weights, has_head=has_head)
  else:
    unused[_all_of(weights, weights.head)] = "the reader's; see --parts"
  feeds = [_feed(weights, rules, unused)]
  if block_weights is not None and "retriever" in parts:
    unused = {_all_of(block_weights, block_weights.head): "of no tower"}
    if pooling != "pooler":
      unused[_all_of(block_weights, block_weights.pooler)] = (
        f"pooling {pooling!r} does not use the pooler"
      )
    block_rules = tower_rules(block_weights, pooling, SEPARATE_TOWERS[1])
    feeds.append(_feed(block_weights, block_rules, unused))

  fresh = {"reader/span_head/.*": "BERT has no span head"}
  if not has_head:
    fresh["reader/masked_lm_head/.*"] = NO_HEAD
  if options.projection_size is not None:
    fresh["retriever/[^/]*/projection(_norm)?/.*"] = "--projection_size"
  return ImportPlan(
    source=source,
    retriever=retriever,
    reader=usual_reader(weights.config),
    parts=parts,
    pieces=pieces,
    feeds=tuple(feeds),
    expected_fresh=fresh,
    notes=tuple(notes),
  )


def tower_rules(
  weights: BertWeights, pooling: str, tower: str
) -> tuple[Rule, ...]:
  """The rules of a tower without projection."""
  return names.bert_tower(
    weights.dialect,
    weights.config,
    pooling=pooling,
    ours=f"retriever/{tower}",
    theirs=weights.prefix,
  )


def reader_rules(weights: BertWeights, *, has_head: bool) -> tuple[Rule, ...]:
  """The rules of a reader without span head."""
  if has_head:
    return names.masked_lm(
      weights.dialect,
      weights.config,
      ours="reader",
      theirs=weights.prefix,
      head=weights.head,
    )
  return names.encoder(
    weights.dialect,
    weights.config,
    ours="reader/encoder",
    theirs=weights.prefix,
  )


def _all_of(weights: BertWeights, module: str) -> str:
  """A regular expression for the tensors of a module."""
  return re.escape(weights.dialect.spell(f"{module}/")) + ".*"


def _feed(
  weights: BertWeights, rules: Sequence[Rule], unused: dict[str, str]
) -> Feed:
  return Feed(
    weights.source,
    tuple(rules),
    {**weights.leftovers, **unused},
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
