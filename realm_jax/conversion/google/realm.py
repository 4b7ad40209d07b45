"""TF-Hub modules and fine-tuned checkpoints of released REALM and ORQA.

cc_news_pretrained/{embedder,bert}      pre-trained: retriever, reader
ict                                     ORQA's retriever
orqa_nq_model_from_realm                fine-tuned: both, in one checkpoint
  params.json
  export/best_default/checkpoint/model.ckpt-…
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from realm_jax.conversion.bert_models import (
  NO_HEAD,
  reader_rules,
  require_same_config,
  tower_rules,
)
from realm_jax.conversion.config_file import read_optional
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google import hub_module
from realm_jax.conversion.google.bert import read_uncased_pieces
from realm_jax.conversion.google.checkpoint import (
  TfCheckpoint,
  checkpoint_prefixes,
)
from realm_jax.conversion.google.encoders import (
  Encoder,
  find_encoders,
  modules_in,
)
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import (
  OPEN_QA_JOINT_LENGTH,
  PARTS,
  READER,
  RETRIEVER,
  SEPARATE_TOWERS,
  SHARED_TOWER,
  ImportPlan,
  require_parts,
  require_retriever,
  usual_reader,
)
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# The hyperparameters of a fine-tuned model.
_PARAMS = "params.json"
# The checkpoint in a retriever's module that holds the vectors of all blocks.
_ENCODED = "encoded"
_BLOCK_VECTORS = "block_emb"


def plan_tf_realm(
  input_path: Path,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] | None = None,
  vocab: Path | None = None,
  separate_towers: bool = False,
  score_scale: float = 1.0,
) -> ImportPlan:
  """Plans the import of a released retriever, reader, or both.

  Args:
    input_path: Module, directory of modules, directory of a fine-tuned model,
      or prefix of a checkpoint.
    block_input: Input of the same kinds for the block tower, if it has its
      own: open QA trains the query tower, and its blocks keep the vectors of
      the pre-trained one.
    parts: Parts to import; None takes all that the input has.
    vocab: Vocabulary file; None looks for the modules' own.
    separate_towers: Whether to start two towers from shared weights.
    score_scale: Factor of inner products.

  Raises:
    ConversionError: If there is nothing of REALM or ORQA, or it does not fit
      together.
    VocabularyError: If the vocabulary cannot be used.
  """
  encoders = find_encoders(input_path)
  others = [] if block_input is None else find_encoders(block_input)
  if block_input is not None and not _of(others, RETRIEVER):
    raise ConversionError(f"--block_input={block_input} holds no retriever")
  inputs = [path for path in (input_path, block_input) if path is not None]
  pieces = _pieces(inputs, vocab)
  present = tuple(part for part in PARTS if _of(encoders, part))
  parts = present if parts is None else parts
  require_parts(parts, present)
  require_retriever(block_input, parts)

  towers: dict[str, Encoder] = {}
  if RETRIEVER in parts:
    towers = _towers(encoders, others, separate=separate_towers)
  readers = _of(encoders, READER) if READER in parts else []
  used = [*towers.values(), *readers]
  _require_one_configuration(used, len(pieces))
  config = used[0].weights.config
  fresh: dict[str, str] = {}
  for encoder in readers:
    if not encoder.norm:
      fresh["reader/span_head/.*"] = "the input has no span head"
    if not encoder.weights.has_head:
      fresh["reader/masked_lm_head/.*"] = NO_HEAD
  return ImportPlan(
    source=f"{input_path.resolve().name} (tf_realm)",
    retriever=_retriever(config, towers, score_scale=score_scale),
    reader=_reader(config, readers, input_path),
    parts=parts,
    pieces=pieces,
    feeds=tuple(
      _feed(prefix, towers, readers, [*encoders, *others])
      for prefix in dict.fromkeys(encoder.prefix for encoder in used)
    ),
    expected_fresh=fresh,
    notes=tuple(_notes(used)),
    # The tower that embeds blocks made them.
    block_vectors=_block_vectors(block_input or input_path)
    if RETRIEVER in parts
    else None,
  )


def _of(encoders: Sequence[Encoder], role: str) -> list[Encoder]:
  return [encoder for encoder in encoders if encoder.role == role]


def _towers(
  encoders: Sequence[Encoder], others: Sequence[Encoder], *, separate: bool
) -> dict[str, Encoder]:
  """Chooses the encoder of each tower, by the tower's name."""
  own = _of(encoders, RETRIEVER)
  query = [e for e in own if e.is_query] or own
  block = _of(others, RETRIEVER) or own
  block = [e for e in block if not e.is_query] or block
  for name, found in (("query", query), ("block", block)):
    if len(found) != 1:
      wheres = ", ".join(f"{e.weights.where}:{e.weights.prefix}" for e in found)
      raise ConversionError(
        f"{len(found)} encoders could embed {name}s: {wheres}; give one of "
        "them as --input"
      )
  if query == block and not separate:
    return dict.fromkeys(SHARED_TOWER, query[0])
  return dict(zip(SEPARATE_TOWERS, (query[0], block[0]), strict=True))


def _require_one_configuration(
  used: Sequence[Encoder], num_pieces: int
) -> None:
  """Checks that one model of ours can hold all these encoders."""
  for encoder in used:
    weights = encoder.weights
    require_same_config(used[0].weights, weights)
    rows = weights.source.shapes[f"{weights.prefix}embeddings/word_embeddings"]
    if rows[0] != num_pieces:
      raise ConversionError(
        f"{weights.where} has {rows[0]} word embeddings, and the vocabulary "
        f"{num_pieces} pieces; pass the one of these weights with --vocab"
      )
  kinds = {(e.width, e.norm_eps) for e in _of(used, RETRIEVER)}
  if len(kinds) > 1:
    raise ConversionError(
      f"the two towers project differently (size, epsilon): {sorted(kinds)}; a "
      "retriever has one projection for both"
    )
  if len(_of(used, READER)) > 1:
    wheres = ", ".join(e.weights.where for e in _of(used, READER))
    raise ConversionError(
      f"several readers: {wheres}; give one of them as --input"
    )


def _retriever(
  config: BertConfig, towers: Mapping[str, Encoder], *, score_scale: float
) -> Retriever:
  if not towers:
    return Retriever(config)
  tower = next(iter(towers.values()))
  return Retriever(
    config,
    shared_towers=len(towers) == 1,
    pooling="pooler",
    projection_size=tower.width,
    projection_norm_eps=tower.norm_eps,
    score_scale=score_scale,
  )


def _reader(
  config: BertConfig, readers: Sequence[Encoder], input_path: Path
) -> Reader:
  usual = usual_reader(config)
  if not readers or not readers[0].norm:
    return usual
  params = read_optional(input_path / _PARAMS)
  joint_length = params.size("reader_seq_len", OPEN_QA_JOINT_LENGTH)
  width = params.size("max_span_width", usual.max_answer_width)
  return usual.clone(
    joint_length=min(joint_length, config.max_positions),
    span_size=readers[0].width // 2,
    span_norm_eps=readers[0].norm_eps,
    max_answer_width=width,
  )


def _feed(
  prefix: Path,
  towers: Mapping[str, Encoder],
  readers: Sequence[Encoder],
  all_encoders: Sequence[Encoder],
) -> Feed:
  """Returns what is taken from one checkpoint."""
  rules: list[Rule] = []
  unused: dict[str, str] = {}
  for tower, encoder in towers.items():
    if encoder.prefix == prefix:
      rules += _tower_rules(encoder, tower)
      unused[encoder.weights.all_of(encoder.weights.head)] = (
        "a retriever has no masked-LM head"
      )
  for encoder in readers:
    if encoder.prefix == prefix:
      rules += _reader_rules(encoder)
      unused[encoder.weights.all_of(encoder.weights.pooler)] = (
        "readers have no pooler"
      )
  here = [e for e in all_encoders if e.prefix == prefix]
  for encoder in here:
    if encoder not in (*towers.values(), *readers):
      for module in _modules_of(encoder):
        unused[encoder.weights.all_of(module)] = (
          f"a part of a {encoder.role} that is not imported"
        )
  weights = here[0].weights
  return Feed(
    weights.source,
    tuple(rules),
    {**weights.leftovers, **unused},
    where=weights.where,
  )


def _tower_rules(encoder: Encoder, tower: str) -> tuple[Rule, ...]:
  dialect, path = encoder.weights.dialect, f"retriever/{tower}"
  return (
    *tower_rules(encoder.weights, "pooler", tower),
    *dialect.dense(f"{path}/projection", f"{encoder.scope}dense"),
    *dialect.layer_norm(f"{path}/projection_norm", encoder.norm),
  )


def _reader_rules(encoder: Encoder) -> tuple[Rule, ...]:
  dialect, path = encoder.weights.dialect, "reader/span_head"
  rules = reader_rules(encoder.weights)
  if not encoder.norm:
    return rules
  return (
    *rules,
    *dialect.dense(f"{path}/projection", f"{encoder.scope}dense"),
    *dialect.layer_norm(f"{path}/norm", encoder.norm),
    *dialect.dense(f"{path}/score", f"{encoder.scope}dense_1"),
  )


def _modules_of(encoder: Encoder) -> list[str]:
  """Returns the names of an encoder's modules and of the layers beside it."""
  own = [encoder.weights.prefix.removesuffix("/"), encoder.weights.head]
  if not encoder.norm:
    return own
  around = [f"{encoder.scope}dense", f"{encoder.scope}dense_1", encoder.norm]
  return own + around


def _notes(used: Sequence[Encoder]) -> list[str]:
  notes = [
    f"{encoder.role}: LayerNorm epsilon {encoder.norm_eps:g}, the default of "
    f"the library that names it {encoder.norm.rpartition('/')[2]}"
    for encoder in used
    if encoder.norm
  ]
  return list(dict.fromkeys(notes))


def _block_vectors(path: Path) -> Rows | None:
  """Returns the block vectors of a retriever's module, if it has any."""
  for module in (path, *modules_in(path)):
    for prefix in checkpoint_prefixes(module / _ENCODED):
      return TfCheckpoint(prefix).rows(_BLOCK_VECTORS)
  return None


def _pieces(inputs: Sequence[Path], vocab: Path | None) -> tuple[str, ...]:
  """Reads the vocabulary; if there are several files, they must be equal."""
  files = [vocab] if vocab is not None else list(_vocabularies(inputs))
  if not files:
    raise ConversionError(
      f"no vocabulary in {' or '.join(map(str, inputs))}: pass --vocab; in the "
      "release it is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  found = {file: read_uncased_pieces(file) for file in files}
  if len(set(found.values())) > 1:
    raise ConversionError(
      f"{' and '.join(map(str, found))} are different vocabularies; choose one "
      "with --vocab"
    )
  return found[files[0]]


def _vocabularies(inputs: Sequence[Path]) -> Iterator[Path]:
  for path in inputs:
    folder = path if path.is_dir() else path.parent
    for file in (
      folder / VOCABULARY_FILE,
      *map(hub_module.vocabulary, (folder, *modules_in(folder))),
    ):
      if file.is_file():
        yield file
