"""Maps the weights of an input to a model, before anything is written."""

import dataclasses
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from flax import traverse_util
from flax.core import meta

from realm_jax.indexes.protocol import Rows
from realm_jax.models import AnyArray
from realm_jax.models.bert import BertConfig
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.weights import WeightsError, name_maps
from realm_jax.weights.name_maps import (
  PARTS,
  READER,
  RETRIEVER,
  SEPARATE_TOWERS,
  Shape,
  System,
  Table,
  Tensors,
  below,
)
from realm_jax.weights.registry import FORMATS, ImportConfig, locate

BLOCK_VECTORS = "block_emb"
# Tensors that are never used.
UNUSED = {
  r"(.*[./])?embeddings\.(position|token_type)_ids": "computed, not stored",
  r"(.*[./])?cls[./]seq_relationship[./].*": "a next-sentence head",
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  rf"(block\.)?{BLOCK_VECTORS}": "vectors of blocks, which are no weights",
}
# Path of a parameter in a layer of BERT, or in a block of T5.
_LAYER = re.compile(r"(.*)/(layer|block)_(\d+)/(.*)")
# Role that an encoder must have for an input to offer a part.
_ROLES = {RETRIEVER: "query", READER: READER}
_PREFIXES = ("query_prefix", "block_prefix")
# Options that are fields of a retriever.
_OF_RETRIEVER = tuple(
  field.name
  for field in dataclasses.fields(ImportConfig)
  if field.name in BertRetriever.__dataclass_fields__
)


class Encoder(NamedTuple):
  """A BERT in another system, and its possible roles.

  Attributes:
    prefix: Prefix of its embeddings in the names of the tensors.
    bert: Configuration without a vocabulary.
    roles: Possible roles: a `query` tower, a `block` tower, the `reader`.
    table: Modules of the encoder and around it, by our names in a tower or
      reader.
    head: Modules of its masked-LM head, which only a reader has.
    retriever_fields: Fields of `BertRetriever` that the input determines;
      prefixes are texts.
    reader_fields: Fields of `BertReader` that the input determines.
  """

  prefix: str
  bert: BertConfig
  roles: Sequence[str]
  table: Table
  head: Table = ()
  retriever_fields: Mapping[str, Any] = {}
  reader_fields: Mapping[str, Any] = {}


class Source(NamedTuple):
  """The contents of an input.

  Attributes:
    tensors: Tensors by name.
    system: System whose spelling the names have.
    encoders: Encoders among the tensors.
    vocabularies: Vocabularies; some releases have none.
    block_vectors: Vectors [N, d] of released blocks, if any.
    block_records: File with the texts of these blocks.
  """

  tensors: Tensors
  system: System
  encoders: Sequence[Encoder]
  vocabularies: Sequence[BertVocabulary]
  block_vectors: Rows | None = None
  block_records: Path | None = None


class BoundModel(NamedTuple):
  """A retriever and a reader for a vocabulary, and the vocabulary."""

  retriever: BertRetriever
  reader: BertReader
  vocabulary: BertVocabulary

  @classmethod
  def of(
    cls,
    retriever: BertRetriever,
    reader: BertReader,
    vocabulary: BertVocabulary,
  ) -> "BoundModel":
    """Binds modules without a vocabulary to one."""
    size, separator_id = vocabulary.size, vocabulary.sep_id
    return cls(
      retriever.for_vocabulary(vocab_size=size, separator_id=separator_id),
      reader.for_vocabulary(vocab_size=size, separator_id=separator_id),
      vocabulary,
    )

  def parameter_shapes(self, parts: Iterable[str]) -> dict[str, Shape]:
    """Returns the shape of every parameter of the parts, by path."""
    init = self._initializer(parts)
    shapes = jax.eval_shape(init, jax.random.key(0))
    return {path: tuple(leaf.shape) for path, leaf in shapes.items()}

  def fresh_parameters(
    self, paths: Iterable[str], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns random initial values of these parameters, by path.

    A parameter that is initialized in both towers gets the same value in both,
    so that an untrained retriever matches equal texts.
    """
    selected = [*paths]
    parts = {path.partition("/")[0] for path in selected}
    query, block = (f"/{tower}/" for tower in SEPARATE_TOWERS.values())

    # Compiles nothing for the other parameters.
    @jax.jit
    def initialize(key: jax.Array) -> dict[str, AnyArray]:
      values = self._initializer(parts)(key)
      return {path: values[path.replace(block, query)] for path in selected}

    return jax.device_get(initialize(jax.random.key(seed)))

  def _initializer(
    self, parts: Iterable[str]
  ) -> Callable[[jax.Array], dict[str, AnyArray]]:
    modules = {RETRIEVER: self.retriever, READER: self.reader}
    # A block must be at least as long as the widest answer.
    lengths = {"query_length": 3, "block_length": self.reader.max_answer_width}
    return lambda key: flattened(
      {
        part: modules[part].init_parameters(key, **lengths)
        for part in sorted(set(parts))
      }
    )


class MappedWeights(NamedTuple):
  """A model with its parameters, and their sources.

  Attributes:
    config: Options of the import.
    model: Model to write.
    parts: Parts that are imported.
    source: Contents of all inputs, with the block tower's released blocks.
    table: Names of the model's modules among the tensors.
    parameters: All parameters of the parts, by path.
    lines: Report of mapped, unused and randomly initialized parameters.
  """

  config: ImportConfig
  model: BoundModel
  parts: Sequence[str]
  source: Source
  table: Table
  parameters: Mapping[str, np.ndarray]
  lines: Sequence[str]

  @property
  def name(self) -> str:
    """Name of the import, for messages."""
    return f"{Path(self.config.input).resolve().name} ({self.config.format})"


def map_weights(config: ImportConfig) -> MappedWeights:
  """Reads the weights of an input, and maps them to a model.

  Raises:
    WeightsError: The inputs cannot be read, or do not fit the options.
    VocabularyError: A vocabulary cannot be used.
  """
  source = of_blocks = _open_source(
    config.format, config.input, config.revision
  )
  if config.block_input is not None:
    of_blocks = _open_source(
      config.format, config.block_input, config.block_revision
    )
    of_blocks = _below("block/", of_blocks)
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
  table = []
  for path, encoder in chosen.items():
    table += below(encoder.table, ours=f"{path}/")
    if path == READER:
      table += below(encoder.head, ours=f"{path}/")
  # Their remaining tensors are not imported.
  for encoder in source.encoders:
    table += below([*encoder.table, *encoder.head], ours="unused/")
  words = _vocabulary(config, source.vocabularies)
  retriever = _retriever(config, chosen, words)
  *_, last = chosen.values()
  length = min(BertReader.joint_length, last.bert.max_positions)
  reader = BertReader(
    last.bert, **{"joint_length": length, **last.reader_fields}
  )
  model = BoundModel.of(retriever, reader, words)
  shapes = model.parameter_shapes(parts)
  parameters, lines = name_maps.read(
    source.tensors,
    table,
    shapes,
    system=source.system,
    allowed=dict.fromkeys(config.ignore, "allowed by --ignore") | UNUSED,
  )
  fresh = shapes.keys() - parameters.keys()
  parameters |= model.fresh_parameters(fresh, seed=config.seed)
  settings = ", ".join(f"{n}={getattr(retriever, n)}" for n in _OF_RETRIEVER)
  lines.append(f"vectors: {settings}; such flags change it")
  if retriever.normalize and retriever.score_scale == 1.0:
    lines.append(
      "score_scale: 1, which ranks blocks as the original model does; to "
      "train from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  return MappedWeights(config, model, parts, source, table, parameters, lines)


def _open_source(
  kind: str, path: epath.PathLike, revision: str | None
) -> Source:
  _, opener = FORMATS[kind]
  source = pkgutil.resolve_name(opener)(locate(path, revision))
  if not source.encoders:
    names = ", ".join([*source.tensors][:5]) or "nothing"
    raise WeightsError(
      f"{path} holds no word embeddings of a BERT, but {names}, …; is it the "
      f"right --input, and --from={kind} its format?"
    )
  return source


def _below(scope: str, source: Source) -> Source:
  """Returns a source with a prefix before the names of its tensors."""
  start = scope.replace("/", ".") if source.system == "torch" else scope
  encoders = [
    one._replace(
      table=below(one.table, theirs=scope), head=below(one.head, theirs=scope)
    )
    for one in source.encoders
  ]
  tensors = {start + name: tensor for name, tensor in source.tensors.items()}
  return source._replace(tensors=tensors, encoders=encoders)


def _choose_encoders(
  config: ImportConfig, main: Source, of_blocks: Source
) -> dict[str, Encoder]:
  """Returns the encoders of the towers and then of the reader, by path."""

  def the_only(source: Source, role: str) -> Encoder:
    matching = [
      one
      for one in source.encoders
      if role in one.roles and config.tensor_prefix in (None, one.prefix)
    ]
    if len(matching) != 1:
      prefixes = ", ".join(repr(one.prefix) for one in matching) or "none"
      raise WeightsError(
        f"{len(matching)} encoders could be the {role} tower or the reader: "
        f"{prefixes}; choose one with --tensor_prefix, or name another input"
      )
    return matching[0]

  roles = {role for one in main.encoders for role in one.roles}
  offered = [part for part in PARTS if _ROLES[part] in roles]
  parts = config.parts or offered
  if not {*parts} <= {*offered}:
    raise WeightsError(
      f"--parts={','.join(parts)}: this input gives {', '.join(offered)}"
    )
  if of_blocks is not main and RETRIEVER not in parts:
    raise WeightsError(
      f"--block_input={config.block_input} is for a retriever, and the parts "
      f"to import are {', '.join(parts)}; leave it out"
    )
  chosen = {}
  if RETRIEVER in parts:
    query, block = the_only(main, "query"), the_only(of_blocks, "block")
    chosen[f"{RETRIEVER}/{name_maps.SHARED_TOWER}"] = query
    if query is not block or config.separate_towers:
      # Settings that two towers must share.
      fields = (
        {n: v for n, v in one.retriever_fields.items() if n not in _PREFIXES}
        for one in (query, block)
      )
      _require_equal(query, block, *fields)
      chosen = {
        f"{RETRIEVER}/{SEPARATE_TOWERS[role]}": one
        for role, one in (("query", query), ("block", block))
      }
  if READER in parts:
    chosen[READER] = the_only(main, READER)
  first, *others = chosen.values()
  for encoder in others:
    _require_equal(first, encoder, first.bert, encoder.bert)
  return chosen


def _require_equal(
  first: Encoder, second: Encoder, of_first: object, of_second: object
) -> None:
  if of_first != of_second:
    raise WeightsError(
      f"the encoders {first.prefix!r} and {second.prefix!r} differ where a "
      f"model has one value for both:\n  {of_first}\n  {of_second}"
    )


def _vocabulary(
  config: ImportConfig, vocabularies: Sequence[BertVocabulary]
) -> BertVocabulary:
  """Returns the vocabulary, which all inputs must share."""
  if config.vocab is not None:
    # REALM and ORQA were trained with TensorFlow Text's normalization.
    is_realm = config.format.endswith("realm")
    return read_vocabulary(
      config.vocab, normalizer="tensorflow_text" if is_realm else "bert"
    )
  if not vocabularies:
    raise WeightsError(
      f"{config.input} has no vocabulary: pass --vocab; in Google's release it "
      "is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  if len({one.digest for one in vocabularies}) > 1:
    raise WeightsError(
      f"{config.input} and --block_input={config.block_input} have "
      f"{len(vocabularies)} vocabularies that differ in their pieces or their "
      "normalization; queries and blocks must share one, which --vocab gives"
    )
  return vocabularies[0]


def _retriever(
  config: ImportConfig,
  encoders: Mapping[str, Encoder],
  words: BertVocabulary,
) -> BertRetriever:
  """Returns the retriever with settings of the user, or else of the input."""
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
  chosen = {name: getattr(config, name) for name in _OF_RETRIEVER}
  fields |= {n: value for n, value in chosen.items() if value is not None}
  for name in _PREFIXES:
    text = fields.get(name)
    fields[name] = ids = tuple(words.encode(text, follows=True)) if text else ()
    if words.unk_id in ids:
      raise WeightsError(
        f"--{name}={text!r} has words that the vocabulary cannot spell"
      )
  # The encoder's dropout rate is used for both.
  fields["projection_dropout_rate"] = first.bert.dropout_rate
  return BertRetriever(bert=first.bert, shared_towers=len(towers) < 2, **fields)


def nested(flat: Mapping[str, AnyArray]) -> Params:
  """Returns the parameter tree of arrays by path.

  Paths have the numbers of layers, as in other systems. In the tree, all blocks
  of T5, and all layers of BERT but the last, are stacked along a new first
  axis, for the encoder's scan.
  """
  tree: dict[str, AnyArray] = {}
  layers: dict[tuple[str, str, str], dict[int, AnyArray]] = {}
  for path, array in flat.items():
    if numbered := _LAYER.fullmatch(path):
      encoder, kind, number, name = numbered.groups()
      layers.setdefault((encoder, kind, name), {})[int(number)] = array
    else:
      tree[path] = array
  for (encoder, kind, name), by_number in layers.items():
    stacked = [by_number[number] for number in sorted(by_number)]
    if kind == "layer":
      tree[f"{encoder}/last_layer/{name}"] = stacked.pop()
    if stacked:
      tree[f"{encoder}/layers/{name}"] = np.stack(stacked)
  return traverse_util.unflatten_dict(tree, sep="/")


def flattened(tree: Params) -> dict[str, AnyArray]:
  """Returns the arrays of a parameter tree by path, the inverse of `nested`."""
  arrays = traverse_util.flatten_dict(meta.unbox(tree), sep="/")
  flat: dict[str, AnyArray] = {}
  for path, array in arrays.items():
    encoder, is_last, name = path.partition("/last_layer/")
    if is_last:
      others = arrays.get(f"{encoder}/layers/{name}", ())
      numbered = enumerate([*others, array])
      flat |= {f"{encoder}/layer_{i}/{name}": layer for i, layer in numbered}
      continue
    encoder, is_stack, name = path.partition("/layers/")
    if not is_stack:
      flat[path] = array
    elif f"{encoder}/last_layer/{name}" not in arrays:
      numbered = enumerate(array)
      flat |= {f"{encoder}/block_{i}/{name}": block for i, block in numbered}
  return flat
