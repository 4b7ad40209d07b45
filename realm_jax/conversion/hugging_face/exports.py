"""Exports a model to directories of transformers' BERT."""

import dataclasses
from collections.abc import Mapping

from realm_jax.conversion import names, planning
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import config, directory, tokenizer
from realm_jax.conversion.names import Dialect, Rules
from realm_jax.conversion.parameters import BoundModel
from realm_jax.files.json_file import JsonValue
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever


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
    files=class_files(encoder, "BertForMaskedLM"),
    notes=tuple(config.mask_note(encoder)),
  )


def _plan_retriever(model: BoundModel, tower: str | None) -> ExportPlan:
  retriever = model.retriever
  encoder = retriever.bert
  if retriever.projection_size is not None:
    raise ConversionError(
      f"the retriever projects to {retriever.projection_size} dimensions, "
      "which BERT does not; export it with --to=sentence_transformers, or the "
      "reader with --part=reader"
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
    files=class_files(encoder, "BertModel"),
    notes=tuple(notes),
  )


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


def class_files(encoder: BertConfig, architecture: str) -> dict[str, JsonValue]:
  """Returns the JSON files of a class of BERT."""
  return {
    directory.CONFIG: {
      "architectures": [architecture],
      "model_type": "bert",
      "torch_dtype": "float32",
      **config.write_bert_config(encoder),
    },
    tokenizer.CONFIG: tokenizer.tokenizer_config(
      "BertTokenizer", encoder.max_positions
    ),
  }
