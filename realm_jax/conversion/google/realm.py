"""TF-Hub modules and fine-tuned checkpoints of released REALM and ORQA.

cc_news_pretrained/{embedder,bert}      pre-trained: retriever, reader
  variables/variables.{index,data-…}
  assets/vocab.txt
ict                                     ORQA's retriever
orqa_nq_model_from_realm                fine-tuned: both, in one checkpoint
  params.json
  export/best_default/checkpoint/model.ckpt-…
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from realm_jax.conversion import planning
from realm_jax.conversion.bert_models import NO_HEAD, TowerOptions
from realm_jax.conversion.config_file import read_optional
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google import checkpoint
from realm_jax.conversion.google.bert import (
  Encoder,
  find_encoders,
  modules_in,
)
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Rules
from realm_jax.conversion.planning import ImportPlan, ImportSource
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, read_uncased_pieces
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# The hyperparameters of a fine-tuned model.
_PARAMS = "params.json"
# The checkpoint in a retriever's module that holds the vectors of all blocks.
_ENCODED = "encoded"
_BLOCK_VECTORS = "block_emb"


def plan_tf_realm(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Plans the import of a released retriever, reader, or both.

  The input is a module, a directory of modules, the directory of a fine-tuned
  model, or the prefix of a checkpoint. The block tower may have an input of its
  own: open QA trains the query tower, and its blocks keep the vectors of the
  pre-trained one.
  """
  path, block_path = source.path, source.block_path
  encoders = find_encoders(path)
  others = [] if block_path is None else find_encoders(block_path)
  if block_path is not None and not _of(others, planning.RETRIEVER):
    raise ConversionError(f"--block_input={block_path} holds no retriever")
  pieces = _pieces(source)
  present = tuple(part for part in planning.PARTS if _of(encoders, part))
  parts = source.choose_parts(present)

  towers: dict[str, Encoder] = {}
  if planning.RETRIEVER in parts:
    towers = _towers(encoders, others, separate=options.separate_towers)
  readers = _of(encoders, planning.READER) if planning.READER in parts else []
  used = [*towers.values(), *readers]
  _require_one_configuration(used, len(pieces))
  config = used[0].weights.config
  fresh: dict[str, str] = {}
  if any(not encoder.norm for encoder in readers):
    fresh["reader/span_head/.*"] = "the input has no span head"
  if any(not e.weights.has_module(e.weights.head) for e in readers):
    fresh["reader/masked_lm_head/.*"] = NO_HEAD
  retriever = Retriever(config)
  if towers:
    tower = next(iter(towers.values()))
    retriever = retriever.clone(
      shared_towers=len(towers) == 1,
      projection_size=tower.width,
      projection_norm_eps=tower.norm_eps,
      score_scale=options.chosen_scale,
    )
  checkpoints = dict.fromkeys(encoder.checkpoint.prefix for encoder in used)
  notes = (
    f"{encoder.role}: LayerNorm epsilon {encoder.norm_eps:g}, the default of "
    f"the library that names it {encoder.norm.rpartition('/')[2]}"
    for encoder in used
    if encoder.norm
  )
  return ImportPlan(
    source=f"{path.resolve().name} ({source.kind})",
    retriever=retriever,
    reader=_reader(config, readers, path),
    parts=parts,
    pieces=pieces,
    feeds=tuple(
      _feed(
        [e for e in [*encoders, *others] if e.checkpoint.prefix == prefix],
        towers,
        readers,
      )
      for prefix in checkpoints
    ),
    expected_fresh=fresh,
    notes=tuple(dict.fromkeys(notes)),
    # The tower that embeds blocks made them.
    block_vectors=_block_vectors(block_path or path) if towers else None,
  )


def _of(encoders: Sequence[Encoder], role: str) -> list[Encoder]:
  return [encoder for encoder in encoders if encoder.role == role]


def _towers(
  encoders: Sequence[Encoder], others: Sequence[Encoder], *, separate: bool
) -> dict[str, Encoder]:
  """Chooses the encoder of each tower, by the tower's name."""
  own = _of(encoders, planning.RETRIEVER)
  query = [e for e in own if e.is_query] or own
  block = _of(others, planning.RETRIEVER) or own
  block = [e for e in block if not e.is_query] or block
  for name, found in (("query", query), ("block", block)):
    if len(found) != 1:
      wheres = ", ".join(f"{e.weights.where}:{e.weights.prefix}" for e in found)
      raise ConversionError(
        f"{len(found)} encoders could embed {name}s: {wheres}; give one of "
        "them as --input"
      )
  if query == block and not separate:
    return dict.fromkeys(planning.SHARED_TOWER, query[0])
  return dict(zip(planning.SEPARATE_TOWERS, (query[0], block[0]), strict=True))


def _require_one_configuration(
  used: Sequence[Encoder], num_pieces: int
) -> None:
  """Checks that one model of ours can hold all these encoders."""
  for encoder in used:
    weights = encoder.weights
    used[0].weights.require_same(weights)
    rows = weights.source.shapes[f"{weights.prefix}embeddings/word_embeddings"]
    if rows[0] != num_pieces:
      raise ConversionError(
        f"{weights.where} has {rows[0]} word embeddings, and the vocabulary "
        f"{num_pieces} pieces; pass the one of these weights with --vocab"
      )
  kinds = {(e.width, e.norm_eps) for e in _of(used, planning.RETRIEVER)}
  if len(kinds) > 1:
    raise ConversionError(
      f"the two towers project differently (size, epsilon): {sorted(kinds)}; a "
      "retriever has one projection for both"
    )
  if len(_of(used, planning.READER)) > 1:
    wheres = ", ".join(e.weights.where for e in _of(used, planning.READER))
    raise ConversionError(
      f"several readers: {wheres}; give one of them as --input"
    )


def _reader(
  config: BertConfig, readers: Sequence[Encoder], input_path: Path
) -> Reader:
  usual = planning.usual_reader(config)
  if not readers or not readers[0].norm:
    return usual
  params = read_optional(input_path / _PARAMS)
  joint_length = params.size("reader_seq_len", planning.OPEN_QA_JOINT_LENGTH)
  return usual.clone(
    joint_length=min(joint_length, config.max_positions),
    span_size=readers[0].width // 2,
    span_norm_eps=readers[0].norm_eps,
    max_answer_width=params.size("max_span_width", usual.max_answer_width),
  )


def _feed(
  here: Sequence[Encoder],
  towers: Mapping[str, Encoder],
  readers: Sequence[Encoder],
) -> Feed:
  """Returns what is taken from the checkpoint of the encoders `here`."""
  rules: Rules = ()
  unused: dict[str, str] = {}
  for tower, encoder in towers.items():
    if encoder in here:
      rules += encoder.tower_rules(tower)
      head = encoder.weights.all_of(encoder.weights.head)
      unused[head] = "a retriever has no masked-LM head"
  for encoder in readers:
    if encoder in here:
      rules += encoder.reader_rules()
      pooler = encoder.weights.all_of(encoder.weights.pooler)
      unused[pooler] = "readers have no pooler"
  for encoder in here:
    if encoder not in (*towers.values(), *readers):
      for module in encoder.modules:
        unused[encoder.weights.all_of(module)] = (
          f"a part of a {encoder.role} that is not imported"
        )
  return here[0].weights.feed(rules, unused)


def _block_vectors(path: Path) -> Rows | None:
  """Returns the block vectors of a retriever's module, if it has any."""
  for module in (path, *modules_in(path)):
    for prefix in checkpoint.checkpoint_prefixes(module / _ENCODED):
      return checkpoint.TfCheckpoint(prefix).rows(_BLOCK_VECTORS)
  return None


def _pieces(source: ImportSource) -> tuple[str, ...]:
  """Reads the vocabulary; if there are several files, they must be equal."""
  inputs = [path for path in (source.path, source.block_path) if path]
  files = []
  for path in inputs:
    folder = path if path.is_dir() else path.parent
    assets = [m / "assets" for m in (folder, *modules_in(folder))]
    found = [at / VOCABULARY_FILE for at in (folder, *assets)]
    files += [file for file in found if file.is_file()]
  if source.vocab is not None:
    files = [Path(source.vocab)]
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
