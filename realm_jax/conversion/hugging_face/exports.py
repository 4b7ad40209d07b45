"""Exports a model to directories of transformers: BERT, and REALM's classes."""

import dataclasses
from collections.abc import Mapping

from realm_jax.conversion import names, planning
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.gin_model import unusual_inputs
from realm_jax.conversion.hugging_face import (
  config,
  directory,
  realm,
  tokenizer,
)
from realm_jax.conversion.names import Dialect, Rules
from realm_jax.conversion.parameters import BoundModel
from realm_jax.files.json_file import JsonValue
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever

# The class of each model.
_CLASSES = {
  "embedder": "RealmEmbedder",
  "scorer": "RealmScorer",
  "encoder": "RealmKnowledgeAugEncoder",
  "reader": "RealmReader",
  "open_qa": "RealmForOpenQA",
}


@dataclasses.dataclass(frozen=True)
class ExportPlan:
  """The files of a directory for another system.

  The parameters of the `parts` are written by `rules`, completely or not, and
  JSON `files` by path, of which None makes a directory, and `texts` likewise.
  Tensors whose names begin with one of the `folders` and a dot are in the
  weights of that folder, without them. The `notes` say what the directory
  cannot.
  """

  parts: tuple[str, ...]
  rules: Rules
  files: Mapping[str, JsonValue]
  notes: tuple[str, ...]
  texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  folders: tuple[str, ...] = ()


def plan_bert_export(
  model: BoundModel, part: str, tower: str | None
) -> ExportPlan:
  """Plans the export of the retriever as a BertModel, or else of the reader.

  The reader becomes a BertForMaskedLM, without its span head.
  """
  if part == "retriever":
    return _plan_retriever(model, tower)
  if tower is not None:
    raise ConversionError(f"--tower={tower}: a reader has none")
  encoder = model.reader.bert
  return ExportPlan(
    parts=("reader",),
    rules=names.reader(Dialect.TORCH, encoder, "bert.", head=names.HEAD),
    files=class_files(encoder, "bert", "BertForMaskedLM"),
    notes=tuple(config.mask_note(encoder)),
  )


def _plan_retriever(model: BoundModel, tower: str | None) -> ExportPlan:
  retriever = model.retriever
  encoder = retriever.bert
  if retriever.projection_size is not None:
    raise ConversionError(
      f"the retriever projects to {retriever.projection_size} dimensions, "
      "which BERT does not; export it with --to=sentence_transformers or "
      "--to=hf_realm, or the reader with --part=reader"
    )
  notes = [
    *config.mask_note(encoder),
    f"pooling {retriever.pooling!r} is not written; "
    "--to=sentence_transformers writes how vectors are made",
  ]
  if retriever.score_scale != 1.0:
    notes.append(f"score_scale={retriever.score_scale} is not written")
  has_pooler = retriever.pooling == "pooler"
  name = choose_tower(retriever, tower)
  return ExportPlan(
    parts=("retriever",),
    rules=names.tower(Dialect.TORCH, encoder, name, "", pooler=has_pooler),
    files=class_files(encoder, "bert", "BertModel"),
    notes=tuple(notes),
  )


def plan_realm_export(
  model: BoundModel, name: str, tower: str | None
) -> ExportPlan:
  """Plans the export of one of `planning.REALM_MODELS`."""
  architecture = _CLASSES[name]
  parts = realm.PARTS_OF[architecture]
  if tower is not None and name != "embedder":
    raise ConversionError(
      f"--tower={tower} is for --model=embedder; {name} takes what it needs"
    )
  retriever, reader, _ = model
  encoder = (retriever if "retriever" in parts else reader).bert
  rules: Rules = ()
  if "retriever" in parts:
    _require_realm(retriever, name)
    for prefix, ours in _towers(retriever, name, tower).items():
      rules += realm.embedder_rules(encoder, ours, prefix)
  if "reader" in parts:
    if reader.bert != encoder:
      raise ConversionError(
        "retriever and reader have different encoders, but a RealmForOpenQA "
        "has only one configuration; export --model=embedder and "
        "--model=reader"
      )
    rules += realm.reader_rules(encoder, architecture)
  notes = config.mask_note(encoder)
  if name == "open_qa":
    notes.append(
      "block_emb is not written: set it, and num_block_records, from the "
      "embeddings of a generation"
    )
  if name == "scorer" and not retriever.shared_towers:
    notes.append(
      "transformers reads the query tower only into an embedder that it is "
      "given: RealmScorer.from_pretrained(dir, "
      "query_embedder=RealmEmbedder(config))"
    )
  return ExportPlan(
    parts=parts,
    rules=rules,
    files=class_files(
      encoder, "realm", architecture, **_settings(model, architecture)
    ),
    notes=tuple(notes),
  )


def _towers(
  retriever: Retriever, name: str, tower: str | None
) -> dict[str, str]:
  """Returns our tower of each embedder in a class, by the latter's prefix."""
  query, block = planning.SEPARATE_TOWERS
  if name == "embedder":
    return {"": choose_tower(retriever, tower)}
  if retriever.shared_towers:
    return {realm.EMBEDDER: planning.SHARED_TOWER[0]}
  if name == "scorer":
    return {realm.QUERY_EMBEDDER: query, realm.EMBEDDER: block}
  # Open QA embeds questions only; its blocks are vectors already.
  return {realm.EMBEDDER: query}


def _require_realm(retriever: Retriever, name: str) -> None:
  """Checks that the retriever is REALM's."""
  wrong = {
    f"pooling={retriever.pooling!r}": retriever.pooling != "pooler",
    "no projection": retriever.projection_size is None,
    "normalize=True": retriever.normalize,
    # It does not change an embedder's vectors.
    f"score_scale={retriever.score_scale}": (
      retriever.score_scale != 1.0 and name != "embedder"
    ),
    f"projection_norm_eps={retriever.projection_norm_eps}": (
      retriever.projection_norm_eps != retriever.bert.layer_norm_eps
    ),
    **{f"{k}={value}": True for k, value in unusual_inputs(retriever).items()},
  }
  said = [what for what, is_so in wrong.items() if is_so]
  if said:
    raise ConversionError(
      f"the retriever has {', '.join(said)}, which transformers' REALM cannot "
      "express; --to=sentence_transformers may"
    )


def _settings(model: BoundModel, architecture: str) -> dict[str, JsonValue]:
  """Returns the entries of config.json that BERT does not have."""
  retriever, reader, _ = model
  settings: dict[str, JsonValue] = {}
  if retriever.projection_size is not None:
    settings["retriever_proj_size"] = retriever.projection_size
  if "reader" in realm.PARTS_OF[architecture]:
    settings |= {
      "span_hidden_size": reader.span_size,
      "max_span_width": reader.max_answer_width,
      "reader_layer_norm_eps": reader.span_norm_eps,
    }
  if architecture in realm.SPAN_READERS:
    settings["reader_seq_len"] = reader.joint_length
  if architecture == "RealmForOpenQA":
    settings["num_block_records"] = 0
  return settings


def choose_tower(retriever: Retriever, tower: str | None) -> str:
  """Returns the name of the tower that the user means."""
  if retriever.shared_towers:
    if tower is not None:
      raise ConversionError(
        f"--tower={tower}: the towers of this model are one; leave it out"
      )
    return planning.SHARED_TOWER[0]
  if tower is None:
    raise ConversionError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return planning.SEPARATE_TOWERS[planning.TOWERS.index(tower)]


def class_files(
  encoder: BertConfig, model_type: str, architecture: str, **settings: JsonValue
) -> dict[str, JsonValue]:
  """Returns the JSON files of a class, with settings that BERT lacks."""
  return {
    directory.CONFIG: {
      "architectures": [architecture],
      "model_type": model_type,
      "torch_dtype": "float32",
      **config.write_bert_config(encoder),
      **settings,
    },
    tokenizer.CONFIG: tokenizer.tokenizer_config(
      f"{model_type.capitalize()}Tokenizer", encoder.max_positions
    ),
  }
