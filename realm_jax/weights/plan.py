"""What a user imports, what a format's reader finds, and the plan of both.

A plan is complete before anything is written.
"""

import dataclasses
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from etils import epath

from realm_jax.corpus.shards.format import MIN_BLOCK_LENGTH
from realm_jax.files.object_store.remote import is_remote
from realm_jax.indexes.protocol import Rows
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import POOLINGS, Retriever
from realm_jax.settings import PositiveFloat, PositiveInt, require_valid
from realm_jax.text.wordpieces import vocabulary_of
from realm_jax.weights import WeightsError, reading
from realm_jax.weights.config import read_uncased_pieces
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
  SEPARATE_TOWERS,
  SHARED_TOWER,
  Encoder,
  Module,
  System,
  Table,
  encoder_table,
  places,
  reader_table,
  start_of,
  tower_table,
)


class Format(NamedTuple):
  """A format of weights.

  Attributes:
    meaning: What an input of this format is, for people.
    reader: Module and name of the function that reads it: from an
      `ImportConfig`, the path of an input and a prefix for the names of its
      tensors to a `Source`.
    refused: Fields of `ImportConfig` about which its inputs leave no choice.
  """

  meaning: str
  reader: str
  refused: Sequence[str] = ()


_OF_TOWERS = (
  *("tensor_prefix", "pooling", "projection_size", "normalize", "query_prefix"),
  *("block_prefix", "title_separator", "token_types"),
)
FORMATS: Mapping[str, Format] = {
  "hf_bert": Format(
    "a directory with config.json, model.safetensors or pytorch_model.bin, and "
    "vocab.txt or tokenizer.json: BERT, MiniLM, Contriever, E5, BGE, DPR and "
    "the like, with or without the modules.json of sentence-transformers",
    "realm_jax.weights.hugging_face:open_bert",
    ("vocab",),
  ),
  "hf_realm": Format(
    "a directory of transformers' REALM, whose config.json names the class: "
    "RealmEmbedder, RealmScorer, RealmKnowledgeAugEncoder, RealmReader or "
    "RealmForOpenQA",
    "realm_jax.weights.hugging_face:open_realm",
    ("vocab", "block_input", *_OF_TOWERS),
  ),
  "tf_bert": Format(
    "a directory with Google's bert_config.json, bert_model.ckpt.* and "
    "vocab.txt, or a checkpoint's prefix in one",
    "realm_jax.weights.google:open_bert",
    ("vocab", "tensor_prefix"),
  ),
  "tf_realm": Format(
    "what Google released of REALM and ORQA: a TF-Hub module (embedder, bert, "
    "ict), a directory of modules, or a fine-tuned model",
    "realm_jax.weights.google:open_realm",
    _OF_TOWERS,
  ),
}
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
class ImportConfig:
  """What to import, and what to make of it; None takes what the input says.

  Attributes:
    format: Format of the input, one of `FORMATS`.
    input: Local directory, or the prefix of a TensorFlow checkpoint.
    block_input: Second input, for a separate block tower.
    parts: Parts to import, retriever and reader; None takes what the input has.
    tensor_prefix: Prefix of `embeddings.word_embeddings.weight`, if an hf_bert
      input holds several encoders; None finds it.
    vocab: Vocabulary file, if a tf_realm input has none.
    pooling: How hidden states become a vector, `pooler`, `cls` or `mean`;
      without modules.json, the pooler if the weights have one, or else cls.
    projection_size: Size of REALM's projection, which is added with random
      values; None adds none.
    normalize: Whether vectors have length 1.
    score_scale: Factor of inner products, by default 1; training normalized
      vectors needs more.
    query_prefix: Text that the model expects before a query.
    block_prefix: Text that the model expects before a block.
    title_separator: Whether [SEP] separates title and body; by default yes, as
      in REALM, except for sentence-transformers.
    token_types: Whether tokens after the first [SEP] are of type 1; by default
      yes, as in REALM, except for sentence-transformers.
    separate_towers: Whether queries and blocks have separate towers, which
      start from the same weights where the input has one.
    corpus_dir: Corpus to make of the blocks that were released with the
      weights, whose vectors become generation 0; None imports no blocks.
    block_records: File of the blocks' texts, block_records.npy or TFRecords
      (blocks.tfr); None takes the input's own.
    block_titles: TFRecords of the blocks' titles (titles.tfr); None leaves them
      empty.
    block_length: Maximum wordpieces of a block; None fits all.
    index: Kind of index for the vectors, exact or scann; None takes `scann`.
    ignore: Regular expression for whole names of tensors that may stay unused.
    initialize: Regular expression for whole paths of parameters that may start
      from random values.
    seed: Seed of parameters that start from random values.
  """

  format: str
  input: epath.PathLike
  block_input: epath.PathLike | None = None
  parts: Sequence[str] | None = None
  tensor_prefix: str | None = None
  vocab: epath.PathLike | None = None
  pooling: str | None = None
  projection_size: PositiveInt | None = None
  normalize: bool | None = None
  score_scale: PositiveFloat | None = None
  query_prefix: str | None = None
  block_prefix: str | None = None
  title_separator: bool | None = None
  token_types: bool | None = None
  separate_towers: bool = False
  corpus_dir: epath.PathLike | None = None
  block_records: epath.PathLike | None = None
  block_titles: epath.PathLike | None = None
  block_length: int | None = None
  index: Literal["exact", "scann"] | None = None
  ignore: Sequence[str] = ()
  initialize: Sequence[str] = ()
  seed: int = 0

  def __post_init__(self) -> None:
    require_valid(self)
    if self.pooling is not None and self.pooling not in POOLINGS:
      raise WeightsError(
        f"--pooling={self.pooling}; want one of {', '.join(POOLINGS)}"
      )
    for flag in ("ignore", "initialize"):
      for pattern in getattr(self, flag):
        try:
          re.compile(pattern)
        except re.error as error:
          raise WeightsError(
            f"--{flag}={pattern} is no regular expression: {error}"
          ) from error
    if refused := self._given(*FORMATS[self.format].refused):
      raise WeightsError(
        f"--from={self.format} takes no {refused}; its input leaves no choice"
      )
    of_blocks = ("block_records", "block_titles", "block_length", "index")
    if self.corpus_dir is None and (given := self._given(*of_blocks)):
      raise WeightsError(
        f"{given} without --corpus_dir, which names the corpus to make of the "
        "released blocks; give it, or leave these out"
      )
    if self.block_length is not None and self.block_length < MIN_BLOCK_LENGTH:
      raise WeightsError(
        f"--block_length={self.block_length} is too short for a title and a "
        f"body; give {MIN_BLOCK_LENGTH} or more (released REALM has 288)"
      )

  def _given(self, *names: str) -> str:
    """Returns the flags of the fields that are given."""
    given = [name for name in names if getattr(self, name) is not None]
    return ", ".join(f"--{name}" for name in given)

  def require_local(self) -> None:
    """Checks that the weights are on a local disk, from which they are mapped.

    Raises:
      WeightsError: They are in a bucket, or not there.
    """
    for name in ("input", "block_input"):
      path = getattr(self, name)
      if path is None:
        continue
      if is_remote(path):
        raise WeightsError(
          f"--{name}={path} is in a bucket, and weights are read from a local "
          "disk; copy them to one first (gcloud storage cp --recursive "
          f"{path} .)"
        )
      local = Path(path)
      # The prefix of a TensorFlow checkpoint is no file.
      if not local.exists() and not [*local.parent.glob(f"{local.name}.*")]:
        raise WeightsError(f"--{name}={path} is not there")


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
  """The model to write, and where each of its parameters comes from.

  Attributes:
    name: Name of what is imported, for people.
    model: Model with its vocabulary; `retriever` and `reader` have none yet.
    parts: Parts that are imported.
    tensors, table, system, unused, fresh: See `reading.read`.
    notes: Lines for the report that say what was chosen and why.
    block_vectors: Vectors [N, d] of blocks that were released with it.
    block_records: File of their texts.
  """

  name: str
  retriever: Retriever
  reader: Reader
  pieces: tuple[str, ...]
  parts: Sequence[str]
  tensors: Tensors
  table: Table
  system: System
  unused: Mapping[str, str]
  fresh: Mapping[str, str]
  notes: Sequence[str] = ()
  block_vectors: Rows | None = None
  block_records: Path | None = None

  def bind(self) -> BoundModel:
    """Returns the model for its vocabulary."""
    words = vocabulary_of(self.pieces)
    return BoundModel.of(self.retriever, self.reader, words)

  def load(
    self, model: BoundModel, *, seed: int = 0
  ) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns all parameters of the parts by path, and lines for the report.

    Raises:
      WeightsError: The tensors do not fit the model.
    """
    shapes = parameter_shapes(model.retriever, model.reader, self.parts)
    parameters, report = reading.read(
      self.tensors,
      self.table,
      shapes,
      system=self.system,
      unused=self.unused,
      fresh=self.fresh,
    )
    parameters |= fresh_parameters(
      model.retriever, model.reader, report.fresh, seed=seed
    )
    return parameters, report.lines(self.tensors, shapes)


def make_plan(config: ImportConfig) -> Plan:
  """Plans an import.

  Raises:
    WeightsError: The inputs cannot be read, or the choices do not fit them.
    VocabularyError: A vocabulary cannot be used.
  """
  open_source = pkgutil.resolve_name(FORMATS[config.format].reader)
  own: Source = open_source(config, Path(config.input), "")
  other: Source | None = None
  if config.block_input is not None:
    separator = "." if own.system == "torch" else "/"
    block_input = Path(config.block_input)
    other = open_source(config, block_input, f"block{separator}")
  parts = _choose_parts(config, own)
  pieces = _vocabulary(config, own, other)
  options = _tower_options(config, own, other)
  towers, readers = {}, []
  if RETRIEVER in parts:
    towers = _choose_towers(own, other, separate=config.separate_towers)
  if READER in parts:
    readers = own.of(READER)
  if len(readers) > 1:
    found = ", ".join(encoder.prefix for encoder in readers)
    raise WeightsError(f"several readers: {found}; give one of them as --input")
  tensors = {**own.tensors, **(other.tensors if other else {})}
  used = [*towers.values(), *readers]
  encoders = [*own.encoders, *(other.encoders if other else ())]
  _require_one_configuration(used)
  for encoder in used:
    require_vocabulary_size(tensors, encoder, own.system, len(pieces))
  notes = [*own.notes]
  pooling = options["pooling"]
  if pooling is None:
    start = start_of(used[0].pooler, own.system)
    has_pooler = any(name.startswith(start) for name in tensors)
    pooling = "pooler" if has_pooler else "cls"
    notes.append(
      f"pooling: {pooling} (the weights have {'a' if has_pooler else 'no'} "
      "pooler); --pooling chooses"
    )
  table: list[Module] = []
  for name, encoder in towers.items():
    table += tower_table(name, encoder, pooling)
  for encoder in readers:
    table += reader_table(encoder)
  fresh = dict.fromkeys(config.initialize, "allowed by --initialize")
  for reader in readers:
    if reader.span_head is None:
      fresh["reader/span_head/.*"] = "the input has no span head"
    if not reader.head:
      fresh["reader/masked_lm_head/.*"] = "the input has no masked-LM head"
  projection = used[0].projection if towers else None
  size, eps = options["projection_size"], Retriever.projection_norm_eps
  if projection is not None:
    if config.projection_size is not None:
      raise WeightsError(
        f"--projection_size={size}: the input has a projection, to "
        f"{projection.size} dimensions; leave the flag out"
      )
    size, eps = projection.size, projection.norm_eps
  elif size is not None:
    fresh["retriever/[^/]*/projection(_norm)?/.*"] = "--projection_size"
  scale = options["score_scale"] or 1.0
  if options["normalize"] and scale == 1.0:
    notes.append(
      "score_scale: 1, which ranks blocks as the original model does; to train "
      "from vectors of length 1, raise SCORE_SCALE (20 is usual)"
    )
  bert = used[0].config
  of_blocks = other or own
  return Plan(
    name=f"{Path(config.input).resolve().name} ({config.format})",
    retriever=Retriever(
      bert=bert,
      shared_towers=len(towers) < 2,
      pooling=pooling,
      projection_size=size,
      projection_norm_eps=eps,
      normalize=bool(options["normalize"]),
      score_scale=scale,
      query_prefix=_ids(options["query_prefix"], pieces, "--query_prefix"),
      block_prefix=_ids(options["block_prefix"], pieces, "--block_prefix"),
      title_separator=options["title_separator"] is not False,
      token_types=options["token_types"] is not False,
    ),
    reader=default_reader(bert).clone(**own.reader),
    pieces=pieces,
    parts=parts,
    tensors=tensors,
    table=table,
    system=own.system,
    unused=_unused(config, table, encoders, used, own.system),
    fresh=fresh,
    notes=notes,
    # The tower that embeds blocks made them.
    block_vectors=of_blocks.block_vectors if towers else None,
    block_records=of_blocks.block_records,
  )


def _choose_parts(config: ImportConfig, own: Source) -> Sequence[str]:
  present = [part for part in PARTS if own.of(part)]
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
  config: ImportConfig, own: Source, other: Source | None
) -> tuple[str, ...]:
  """Returns the vocabulary, which all inputs must share."""
  if config.vocab is not None:
    return read_uncased_pieces(Path(config.vocab))
  found = {**own.vocabularies, **(other.vocabularies if other else {})}
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
  config: ImportConfig, own: Source, other: Source | None
) -> dict[str, Any]:
  """Returns how vectors are made: what the user says, or else the input."""
  names = (*_OF_TOWERS[1:], "score_scale")
  said = dict(own.towers)
  if other is not None:
    said["block_prefix"] = other.towers.get("block_prefix")
    theirs = {**other.towers, "query_prefix": said.get("query_prefix")}
    if {n: said.get(n) for n in names} != {n: theirs.get(n) for n in names}:
      raise WeightsError(
        f"{config.input} and {config.block_input} make vectors in different "
        "ways; a retriever has one for both"
      )
  options = {name: getattr(config, name) for name in names}
  return {n: said.get(n) if v is None else v for n, v in options.items()}


def _choose_towers(
  own: Source, other: Source | None, *, separate: bool
) -> dict[str, Encoder]:
  """Chooses the encoder of each tower, by the tower's name."""
  candidates = own.of(RETRIEVER)
  others = candidates if other is None else other.of(RETRIEVER)
  query = [e for e in candidates if e.only_queries] or candidates
  block = [e for e in others if not e.only_queries] or others
  for name, found in (("query", query), ("block", block)):
    if len(found) != 1:
      prefixes = ", ".join(encoder.prefix for encoder in found) or "none"
      raise WeightsError(
        f"{len(found)} encoders could embed {name}s: {prefixes}; give one of "
        "them as --input" + (" and --block_input" if other else "")
      )
  if query == block and not separate:
    return dict.fromkeys(SHARED_TOWER, query[0])
  projections = query[0].projection, block[0].projection
  kinds = [p and (p.size, p.norm_eps) for p in projections]
  if kinds[0] != kinds[1]:
    raise WeightsError(
      f"the two towers project differently (size, epsilon): {kinds}; a "
      "retriever has one projection for both"
    )
  return dict(zip(SEPARATE_TOWERS, (query[0], block[0]), strict=True))


def _require_one_configuration(used: Sequence[Encoder]) -> None:
  """Checks that one model can hold all these encoders."""
  for encoder in used:
    if encoder.config != used[0].config:
      raise WeightsError(
        f"the encoders {used[0].prefix!r} and {encoder.prefix!r} are of "
        "different configuration, but a model has only one:"
        f"\n  {used[0].config}\n  {encoder.config}"
      )


def require_vocabulary_size(
  tensors: Tensors, encoder: Encoder, system: System, num_pieces: int
) -> None:
  """Checks that the vocabulary has a piece for each word embedding."""
  words = next(places([*encoder_table("", encoder)], system))
  name = words.names[0]
  rows = tensors[name].shape[0]
  if rows == num_pieces:
    return
  advice = "is this another model's vocabulary?"
  if rows > num_pieces:
    advice = (
      f"the last {rows - num_pieces} rows have no piece. If they are padding, "
      "name them in a copy of vocab.txt by as many lines at its end "
      f"([unused_row_{num_pieces}] and so on); or give the vocabulary of these "
      "weights"
    )
  raise WeightsError(
    f"{name} has {rows} word embeddings, and the vocabulary {num_pieces} "
    f"pieces: {advice}"
  )


def _unused(
  config: ImportConfig,
  table: Table,
  encoders: Sequence[Encoder],
  used: Sequence[Encoder],
  system: System,
) -> dict[str, str]:
  """Returns why tensors may stay unused, by patterns of their names."""

  unused = dict.fromkeys(config.ignore, "allowed by --ignore") | _UNUSED
  for encoder in (*encoders, *(e.twin for e in encoders if e.twin)):
    modules = encoder.around
    if not encoder.has_tied_head:
      modules.append(f"{encoder.head}/decoder")
    if encoder not in used:
      modules += (encoder.prefix + part for part in ("embeddings", "encoder"))
    for module in modules:
      if not any(f"{m.theirs}/".startswith(f"{module}/") for m in table):
        pattern = f"{re.escape(start_of(module, system))}.*"
        unused[pattern] = "of no use to the parts that are imported"
  return unused


def _ids(
  text: str | None, pieces: tuple[str, ...], flag: str
) -> tuple[int, ...]:
  if not text:
    return ()
  vocabulary = vocabulary_of(pieces)
  ids = tuple(vocabulary.encode(text))
  if vocabulary.unk_id in ids:
    raise WeightsError(
      f"{flag}={text!r} has words that the vocabulary cannot spell"
    )
  return ids
