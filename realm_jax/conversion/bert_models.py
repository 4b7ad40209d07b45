"""A retriever and a reader from the weights of a plain BERT of any system."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from realm_jax.conversion import names, planning
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Feed, TensorSource
from realm_jax.conversion.names import Dialect, Rules
from realm_jax.conversion.options import TowerOptions
from realm_jax.conversion.planning import ImportPlan, ImportSource
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import vocabulary_of

NO_HEAD = "the input has no masked-LM head"


class ProjectionWeights(NamedTuple):
  """A projection beside a BERT's weights, as REALM's towers have one.

  `dense` and `norm` are the names of its modules, with slashes, and `size` is
  the dimension of its vectors. The weights of `dense` are the projection's
  times `scale`.
  """

  dense: str
  norm: str
  size: int
  norm_eps: float
  scale: float


@dataclasses.dataclass(frozen=True)
class BertWeights:
  """The weights of one BERT in another system.

  Names have the `prefix` before `embeddings/…`: `bert/` or nothing. `head` is
  the masked-LM head's name, and `where` the checkpoint's in errors and reports.
  For `leftovers` see `mapping.Feed`. `pooler_dense` is the name of the pooler's
  linear layer, if it is not BERT's own, and `projection` what follows it.
  """

  source: TensorSource
  dialect: Dialect
  config: BertConfig
  prefix: str
  head: str
  leftovers: dict[str, str]
  where: str
  pooler_dense: str = ""
  projection: ProjectionWeights | None = None

  @property
  def pooler(self) -> str:
    """The pooler's name, with slashes."""
    return f"{self.prefix}pooler"

  def has_module(self, name: str) -> bool:
    """Returns whether a module, named with slashes, has any tensor."""
    start = self.dialect.spell(f"{name}/")
    return any(tensor.startswith(start) for tensor in self.source.shapes)

  def all_of(self, module: str) -> str:
    """Returns a regular expression for the tensors of a module."""
    return re.escape(self.dialect.spell(f"{module}/")) + ".*"

  def reader_rules(self) -> Rules:
    """Returns the rules of a reader without span head."""
    head = self.head if self.has_module(self.head) else ""
    return names.reader(self.dialect, self.config, self.prefix, head=head)

  def feed(self, rules: Rules, unused: dict[str, str]) -> Feed:
    """Returns what is taken of the checkpoint, and why other parts are not."""
    return Feed(self.source, rules, self.leftovers | unused, self.where)

  def require_same(self, other: "BertWeights") -> None:
    """Raises `ConversionError` if the encoders differ in configuration."""
    if self.config != other.config:
      raise ConversionError(
        f"{self.where} and {other.where} have encoders of different "
        "configuration, but a model has only one:"
        f"\n  {self.config}\n  {other.config}"
      )


class BertInput(NamedTuple):
  """A BERT's weights with their vocabulary, and notes for the report."""

  path: Path
  weights: BertWeights
  pieces: tuple[str, ...]
  notes: list[str]


def plan_bert(
  source: ImportSource,
  options: TowerOptions,
  own: BertInput,
  other: BertInput | None,
) -> ImportPlan:
  """Plans the import of plain BERT weights.

  `own` is for the reader and the query tower, or for both towers if the block
  tower has no `other` input of its own.
  """
  parts = source.choose_parts()
  weights, pieces = own.weights, own.pieces
  if other is not None:
    if other.pieces != pieces:
      raise ConversionError(
        f"{other.path} and {own.path} have different vocabularies; queries and "
        "blocks must share one"
      )
    weights.require_same(other.weights)
  pooling, pooling_notes = _choose_pooling(weights, options)
  separate = options.separate_towers or other is not None
  towers = planning.SEPARATE_TOWERS if separate else planning.SHARED_TOWER
  if planning.RETRIEVER not in parts:
    towers = ()
  own_towers = towers if other is None else towers[:1]
  feeds = [
    _feed(weights, own_towers, pooling, with_reader=planning.READER in parts)
  ]
  if other is not None:
    feeds.append(_feed(other.weights, towers[1:], pooling, with_reader=False))
  fresh = {"reader/span_head/.*": "BERT has no span head"}
  if not weights.has_module(weights.head):
    fresh["reader/masked_lm_head/.*"] = NO_HEAD
  projection = weights.projection
  if options.projection_size is not None:
    if projection is not None:
      raise ConversionError(
        f"--projection_size={options.projection_size}: {weights.where} has a "
        f"projection, to {projection.size} dimensions; leave the flag out"
      )
    fresh["retriever/[^/]*/projection(_norm)?/.*"] = "--projection_size"
  return ImportPlan(
    source=f"{source.path.resolve().name} ({source.kind})",
    retriever=Retriever(
      bert=weights.config,
      shared_towers=not separate,
      pooling=pooling,
      projection_size=projection.size
      if projection
      else options.projection_size,
      projection_norm_eps=projection.norm_eps
      if projection
      else Retriever.projection_norm_eps,
      normalize=bool(options.normalize),
      score_scale=options.chosen_scale,
      query_prefix=_ids(options.query_prefix, pieces, "--query_prefix"),
      block_prefix=_ids(options.block_prefix, pieces, "--block_prefix"),
      title_separator=options.title_separator is not False,
      token_types=options.token_types is not False,
    ),
    reader=planning.usual_reader(weights.config),
    parts=parts,
    pieces=pieces,
    feeds=tuple(feeds),
    expected_fresh=fresh,
    notes=(*own.notes, *pooling_notes),
  )


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
  if options.normalize and options.chosen_scale == 1.0:
    notes.append(
      "score_scale: 1, which ranks blocks as the original model does; to train "
      "from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  return pooling, notes


def _feed(
  weights: BertWeights,
  towers: Sequence[str],
  pooling: str,
  *,
  with_reader: bool,
) -> Feed:
  """Returns what one checkpoint gives: towers, and perhaps the reader."""
  rules: Rules = ()
  unused = {}
  projection = weights.projection
  for tower in towers:
    rules += names.tower(
      weights.dialect,
      weights.config,
      tower,
      weights.prefix,
      pooler=pooling == "pooler",
      pooler_dense=weights.pooler_dense,
      projection=projection.dense if projection else "",
      norm=projection.norm if projection else "",
      projection_scale=projection.scale if projection else 1.0,
    )
  if not towers:
    unused[weights.all_of(weights.pooler)] = "readers have no pooler"
    if weights.pooler_dense:
      unused[weights.all_of(weights.pooler_dense)] = "readers have no pooler"
    if projection:
      for module in (projection.dense, projection.norm):
        unused[weights.all_of(module)] = "readers have no projection"
  elif weights.pooler_dense:
    unused[weights.all_of(weights.pooler)] = (
      f"the pooler is {weights.pooler_dense}"
    )
  elif pooling != "pooler":
    unused[weights.all_of(weights.pooler)] = (
      f"pooling {pooling!r} does not use the pooler"
    )
  if with_reader:
    rules += weights.reader_rules()
  else:
    unused[weights.all_of(weights.head)] = (
      "a reader's, which is not imported from these weights; see --parts"
    )
  return weights.feed(rules, unused)


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
