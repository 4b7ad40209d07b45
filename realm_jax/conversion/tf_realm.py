"""Released REALM and ORQA: TF-Hub modules and fine-tuned checkpoints.

    cc_news_pretrained/{embedder,bert}      pre-trained: retriever, reader
    ict                                     ORQA's retriever
    orqa_nq_model_from_realm                fine-tuned: both, in one checkpoint
      params.json
      export/best_default/checkpoint/model.ckpt-…

A module that is used within another has its variables below `module/`, so
there are as many of these as modules around it. What an encoder is for shows
in what stands around it: a retriever's has a projection (`dense` and a
LayerNorm), an open-QA reader's has a span head (`dense`, `dense_1` and a
LayerNorm), and any other is the reader of pre-training.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.conversion import hub_module, names, tf_bert
from realm_jax.conversion.bert_models import (
  NO_HEAD,
  BertWeights,
  reader_rules,
  tower_rules,
)
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.input_form import InputForm
from realm_jax.conversion.mapping import Feed
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import (
  PARTS,
  SEPARATE_TOWERS,
  SHARED_TOWER,
  ImportPlan,
  require_parts,
  usual_reader,
)
from realm_jax.conversion.tf_checkpoint import (
  TfCheckpoint,
  checkpoint_prefixes,
  only_checkpoint,
)
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

_RETRIEVER, _READER = PARTS
# Modules by the names under which the released code exports them.
_MODULES = ("embedder", "query_embedder", "ict", "bert")
_QUERY_MODULE = "query_embedder"
_BEST = Path("export", "best_default", "checkpoint")
_PARAMS = "params.json"
# Who made the layer shows in its name, and its epsilon in who made it.
_CONTRIB_NORM, _CONTRIB_EPS = "LayerNorm", 1e-12
_KERAS_NORM, _KERAS_EPS = r"layer_normalization(_\d+)?", 1e-3


@dataclasses.dataclass(frozen=True)
class _Encoder:
  """One encoder of a checkpoint, and the layers around it.

  Attributes:
    weights: the encoder.
    role: of `PARTS`, what it is for.
    scope: what precedes the names of the layers around it.
    norm: the name of the LayerNorm among these, in full; empty without one.
    norm_eps: its epsilon.
    is_query: whether it embeds queries alone.
  """

  weights: BertWeights
  role: str
  scope: str = ""
  norm: str = ""
  norm_eps: float = 0.0
  is_query: bool = False

  @property
  def width(self) -> int:
    """What the first layer around it projects to."""
    return self.weights.source.shapes[f"{self.scope}dense/kernel"][-1]


def plan_tf_realm(
  input_path: Path,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] = PARTS,
  vocab: Path | None = None,
) -> ImportPlan:
  """The plan of importing a released retriever, reader, or both.

  Args:
    input_path: a module, a directory of modules, a fine-tuned model's
      directory, or a checkpoint's prefix.
    block_input: the same, of the block tower, where it has its own: open QA
      trains the query tower, and its blocks stay those of the pre-trained one.
    parts: which to import, of those that are there.
    vocab: the vocabulary file; None looks for the modules' own.

  Raises:
    ConversionError: there is nothing of REALM or ORQA, or it does not fit
      together.
    VocabularyError: the vocabulary cannot be used.
  """
  encoders = _encoders(input_path)
  others = [] if block_input is None else _encoders(block_input)
  if block_input is not None and not _of(others, _RETRIEVER):
    raise ConversionError(f"--block_input={block_input} holds no retriever")
  places = [path for path in (input_path, block_input) if path is not None]
  pieces = _pieces(places, vocab)
  present = tuple(part for part in PARTS if _of(encoders, part))
  require_parts(parts, PARTS)
  wanted, parts = parts, tuple(part for part in present if part in parts)
  require_parts(parts or wanted, present)

  towers = _towers(encoders, others) if _RETRIEVER in parts else {}
  readers = _of(encoders, _READER) if _READER in parts else []
  used = [*towers.values(), *readers]
  _require_one_configuration(used, len(pieces))
  config = used[0].weights.config
  settings = _settings(input_path)
  feeds = [
    _feed(checkpoint, towers, readers, [*encoders, *others])
    for checkpoint in _checkpoints(used)
  ]
  fresh: dict[str, str] = {}
  for encoder in readers:
    if not encoder.norm:
      fresh["reader/span_head/.*"] = "the input has no span head"
    if not _has_head(encoder):
      fresh["reader/masked_lm_head/.*"] = NO_HEAD
  return ImportPlan(
    source=f"{input_path.resolve().name} (tf_realm)",
    retriever=_retriever(config, towers),
    reader=_reader(config, readers, settings),
    form=InputForm(),
    parts=parts,
    pieces=pieces,
    feeds=tuple(feeds),
    expected_fresh=fresh,
    notes=tuple(_notes(used, parts, wanted)),
  )


# --- What there is --------------------------------------------------------


def _encoders(path: Path) -> list[_Encoder]:
  """All encoders of an input."""
  found = [
    _encoder(checkpoint, root, is_query=is_query)
    for prefix, is_query in _prefixes(path)
    for checkpoint in [TfCheckpoint(prefix)]
    for root in tf_bert.encoder_roots(checkpoint.shapes)
  ]
  if not found:
    raise ConversionError(
      f"{path} holds no variable bert/embeddings/word_embeddings at any depth; "
      "want a TF-Hub module of REALM or ORQA, or a model fine-tuned from one"
    )
  return found


def _prefixes(path: Path) -> Iterator[tuple[Path, bool]]:
  """The checkpoints of an input, and whether each embeds queries alone."""
  if not path.is_dir():
    yield tf_bert.locate(path), False
    return
  modules = [path] if hub_module.is_module(path) else _modules_in(path)
  if modules:
    for module in modules:
      if hub_module.lower_cases(module) is False:
        raise ConversionError(
          f"the module {module} is of a cased model, and wordpieces here are "
          "uncased; take an uncased one"
        )
      is_query = module != path and module.name == _QUERY_MODULE
      yield hub_module.variables(module), is_query
    return
  best = path / _BEST
  folder = best if checkpoint_prefixes(best) else path
  yield only_checkpoint(folder, where=str(path)), False


def _modules_in(path: Path) -> list[Path]:
  folders = [path / name for name in _MODULES]
  return [folder for folder in folders if hub_module.is_module(folder)]


def _encoder(
  checkpoint: TfCheckpoint, root: str, *, is_query: bool
) -> _Encoder:
  shapes = checkpoint.shapes
  weights = tf_bert.bert_weights(checkpoint, root, _config(checkpoint, root))
  scopes = ["", *itertools.accumulate(re.findall(r"[^/]*/", root))]
  for scope in reversed(scopes):
    if f"{scope}dense/kernel" not in shapes:
      continue
    norms = _norms(shapes, scope)
    if len(norms) != 1:
      raise ConversionError(
        f"{checkpoint.prefix} has {len(norms)} LayerNorms beside "
        f"{scope}dense, {', '.join(norms) or 'none'}; want one"
      )
    has_score = f"{scope}dense_1/kernel" in shapes
    role = _READER if has_score else _RETRIEVER
    (norm, epsilon), *_ = norms.items()
    return _Encoder(
      weights,
      role,
      scope=scope,
      norm=norm,
      norm_eps=epsilon,
      is_query=is_query,
    )
  return _Encoder(weights, _READER)


def _norms(shapes: Mapping[str, object], scope: str) -> dict[str, float]:
  """The LayerNorms of a scope, and their epsilons."""
  kinds = ((_CONTRIB_NORM, _CONTRIB_EPS), (_KERAS_NORM, _KERAS_EPS))
  return {
    name.removesuffix("/gamma"): epsilon
    for name in shapes
    for pattern, epsilon in kinds
    if re.fullmatch(rf"{re.escape(scope)}{pattern}/gamma", name)
  }


def _config(checkpoint: TfCheckpoint, root: str) -> BertConfig:
  where = str(checkpoint.prefix)
  # Beside a checkpoint; of a module, beside its folder `variables`.
  for folder in (checkpoint.prefix.parent, checkpoint.prefix.parent.parent):
    path = folder / tf_bert.CONFIG
    if path.is_file():
      return tf_bert.read_config(_json(path), where=str(path))
  return tf_bert.config_from_shapes(checkpoint.shapes, root, where=where)


def _json(path: Path) -> dict[str, Any]:
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ConversionError(f"{path} is not JSON: {error}") from error
  if not isinstance(found, dict):
    raise ConversionError(f"{path} holds no JSON object")
  return found


def _settings(path: Path) -> dict[str, Any]:
  """The settings that a fine-tuned model was trained with, where they lie."""
  return _json(path / _PARAMS) if (path / _PARAMS).is_file() else {}


def _pieces(places: Sequence[Path], vocab: Path | None) -> tuple[str, ...]:
  """The vocabulary; all that are found must be the same."""
  files = [vocab] if vocab is not None else list(_vocabularies(places))
  if not files:
    raise ConversionError(
      f"no vocabulary in {' or '.join(map(str, places))}: pass --vocab; in the "
      "release it is assets/vocab.txt of every module, such as "
      "cc_news_pretrained/embedder/assets/vocab.txt"
    )
  found = {file: tf_bert.read_uncased_pieces(file) for file in files}
  if len(set(found.values())) > 1:
    raise ConversionError(
      f"{' and '.join(map(str, found))} are different vocabularies; choose one "
      "with --vocab"
    )
  return found[files[0]]


def _vocabularies(places: Sequence[Path]) -> Iterator[Path]:
  for place in places:
    folder = place if place.is_dir() else place.parent
    for file in (
      folder / tf_bert.VOCABULARY,
      *map(hub_module.vocabulary, (folder, *_modules_in(folder))),
    ):
      if file.is_file():
        yield file


# --- What becomes of it ---------------------------------------------------


def _of(encoders: Sequence[_Encoder], role: str) -> list[_Encoder]:
  return [encoder for encoder in encoders if encoder.role == role]


def _towers(
  encoders: Sequence[_Encoder], others: Sequence[_Encoder]
) -> dict[str, _Encoder]:
  """The encoder of each tower, by its name."""
  own = _of(encoders, _RETRIEVER)
  query = [e for e in own if e.is_query] or own
  block = _of(others, _RETRIEVER) or own
  block = [e for e in block if not e.is_query] or block
  for name, found in (("query", query), ("block", block)):
    if len(found) != 1:
      wheres = ", ".join(f"{e.weights.where}:{e.weights.prefix}" for e in found)
      raise ConversionError(
        f"{len(found)} encoders could embed {name}s: {wheres}; give one of "
        "them as --input"
      )
  if query == block:
    return dict.fromkeys(SHARED_TOWER, query[0])
  return dict(zip(SEPARATE_TOWERS, (query[0], block[0]), strict=True))


def _require_one_configuration(
  used: Sequence[_Encoder], num_pieces: int
) -> None:
  """Refuses encoders that a model here could not hold together."""
  first = used[0]
  for encoder in used:
    weights = encoder.weights
    if weights.config != first.weights.config:
      raise ConversionError(
        f"{first.weights.where} and {weights.where} have encoders of different "
        f"configuration, where a model has one:\n  {first.weights.config}\n  "
        f"{weights.config}"
      )
    rows = weights.source.shapes[f"{weights.prefix}embeddings/word_embeddings"]
    if rows[0] != num_pieces:
      raise ConversionError(
        f"{weights.where} has {rows[0]} word embeddings, and the vocabulary "
        f"{num_pieces} pieces; pass the one of these weights with --vocab"
      )
  kinds = {(e.width, e.norm_eps) for e in _of(used, _RETRIEVER)}
  if len(kinds) > 1:
    raise ConversionError(
      f"the two towers project differently (size, epsilon): {sorted(kinds)}; a "
      "retriever has one projection for both"
    )
  if len(_of(used, _READER)) > 1:
    wheres = ", ".join(e.weights.where for e in _of(used, _READER))
    raise ConversionError(
      f"several readers: {wheres}; give one of them as --input"
    )


def _retriever(config: BertConfig, towers: Mapping[str, _Encoder]) -> Retriever:
  if not towers:
    return Retriever(config)
  tower = next(iter(towers.values()))
  return Retriever(
    config,
    shared_towers=len(towers) == 1,
    pooling="pooler",
    projection_size=tower.width,
    projection_norm_eps=tower.norm_eps,
  )


def _reader(
  config: BertConfig, readers: Sequence[_Encoder], settings: Mapping[str, Any]
) -> Reader:
  usual = usual_reader(config)
  if not readers or not readers[0].norm:
    return usual
  joint_length = settings.get("reader_seq_len", usual.joint_length)
  width = settings.get("max_span_width", usual.max_answer_width)
  return usual.clone(
    joint_length=min(joint_length, config.max_positions),
    span_size=readers[0].width // 2,
    span_norm_eps=readers[0].norm_eps,
    max_answer_width=width,
  )


def _checkpoints(used: Sequence[_Encoder]) -> list[Path]:
  return list(dict.fromkeys(_place(encoder) for encoder in used))


def _place(encoder: _Encoder) -> Path:
  source = encoder.weights.source
  assert isinstance(source, TfCheckpoint)
  return source.prefix


def _feed(
  place: Path,
  towers: Mapping[str, _Encoder],
  readers: Sequence[_Encoder],
  all_encoders: Sequence[_Encoder],
) -> Feed:
  """The rules of all that one checkpoint gives."""
  rules: list[Rule] = []
  unused: dict[str, str] = {}
  for tower, encoder in towers.items():
    if _place(encoder) == place:
      rules += _tower_rules(encoder, tower)
      unused[_below(encoder.weights.head)] = "a retriever has no masked-LM head"
  for encoder in readers:
    if _place(encoder) == place:
      rules += _reader_rules(encoder)
      unused[_below(encoder.weights.pooler)] = "readers have no pooler"
  here = [e for e in all_encoders if _place(e) == place]
  for encoder in here:
    if encoder not in (*towers.values(), *readers):
      for module in _modules_of(encoder):
        unused[_below(module)] = f"of a {encoder.role} that is not imported"
  weights = here[0].weights
  return Feed(
    weights.source,
    tuple(rules),
    {**weights.leftovers, **unused},
    where=weights.where,
  )


def _tower_rules(encoder: _Encoder, tower: str) -> tuple[Rule, ...]:
  weights, path = encoder.weights, f"retriever/{tower}"
  return (
    *tower_rules(weights, "pooler", tower),
    *names.dense(
      weights.dialect, f"{path}/projection", f"{encoder.scope}dense"
    ),
    *names.layer_norm(weights.dialect, f"{path}/projection_norm", encoder.norm),
  )


def _reader_rules(encoder: _Encoder) -> tuple[Rule, ...]:
  weights, path = encoder.weights, "reader/span_head"
  rules = reader_rules(weights, has_head=_has_head(encoder))
  if not encoder.norm:
    return rules
  return (
    *rules,
    *names.dense(
      weights.dialect, f"{path}/projection", f"{encoder.scope}dense"
    ),
    *names.layer_norm(weights.dialect, f"{path}/norm", encoder.norm),
    *names.dense(weights.dialect, f"{path}/score", f"{encoder.scope}dense_1"),
  )


def _has_head(encoder: _Encoder) -> bool:
  return encoder.weights.has_module(encoder.weights.head)


def _modules_of(encoder: _Encoder) -> list[str]:
  """The modules of an encoder and of what stands around it, by name."""
  own = [encoder.weights.prefix.removesuffix("/"), encoder.weights.head]
  if not encoder.norm:
    return own
  around = [f"{encoder.scope}dense", f"{encoder.scope}dense_1", encoder.norm]
  return own + around


def _below(module: str) -> str:
  """A regular expression for the variables of a module."""
  return re.escape(f"{module}/") + ".*"


def _notes(
  used: Sequence[_Encoder], parts: tuple[str, ...], wanted: tuple[str, ...]
) -> Iterator[str]:
  for part in wanted:
    if part not in parts:
      yield f"{part}: the input has none"
  for encoder in used:
    if encoder.norm:
      yield (
        f"{encoder.role}: LayerNorm epsilon {encoder.norm_eps:g}, as "
        f"{encoder.norm.rpartition('/')[2]} is by its maker"
      )
