"""Exports a model as one of transformers' REALM classes."""

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import (
  Exported,
  ExportPlan,
  choose_tower,
  mask_note,
)
from realm_jax.conversion.hugging_face import realm_names, tokenizer
from realm_jax.conversion.hugging_face.config import (
  HF_ATTENTION_MASK_VALUE,
  write_bert_config,
)
from realm_jax.conversion.hugging_face.directory import CONFIG
from realm_jax.conversion.hugging_face.realm_names import (
  EMBEDDER,
  PARTS_OF,
  QUERY_EMBEDDER,
  SPAN_READERS,
)
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import SEPARATE_TOWERS, SHARED_TOWER
from realm_jax.conversion.tower_inputs import unusual_inputs
from realm_jax.files.json_file import JsonValue

# The class of each model.
_CLASSES = {
  "embedder": "RealmEmbedder",
  "scorer": "RealmScorer",
  "encoder": "RealmKnowledgeAugEncoder",
  "reader": "RealmReader",
  "open_qa": "RealmForOpenQA",
}
MODELS = tuple(_CLASSES)


def plan_hf_realm_export(
  model: Exported, *, name: str, tower: str | None
) -> ExportPlan:
  """Plans the export of one of `MODELS`.

  Args:
    model: Model to export.
    name: Name of the class: one of `MODELS`.
    tower: `query` or `block`, for an embedder of a retriever with two.

  Raises:
    ConversionError: If that class cannot express the model.
  """
  parts = PARTS_OF[_CLASSES[name]]
  if tower is not None and name != "embedder":
    raise ConversionError(
      f"--tower={tower} is for --model=embedder; {name} takes what it needs"
    )
  encoder = (model.retriever if "retriever" in parts else model.reader).bert
  if "retriever" in parts:
    _require_realm(model, name)
  if parts == ("retriever", "reader") and model.reader.bert != encoder:
    raise ConversionError(
      "retriever and reader have different encoders, but a RealmForOpenQA has "
      "only one configuration; export --model=embedder and --model=reader"
    )
  notes = mask_note(encoder, HF_ATTENTION_MASK_VALUE)
  if name == "open_qa":
    notes.append(
      "block_emb is not written: set it, and num_block_records, from the "
      "embeddings of a generation"
    )
  if name == "scorer" and not model.retriever.shared_towers:
    notes.append(
      "transformers reads the query tower only into an embedder that it is "
      "given: RealmScorer.from_pretrained(dir, "
      "query_embedder=RealmEmbedder(config))"
    )
  return ExportPlan(
    parts=parts,
    rules=_rules(model, name, tower),
    files={
      CONFIG: _config(model, name),
      tokenizer.CONFIG: {
        **tokenizer.tokenizer_config(max_length=encoder.max_positions),
        "tokenizer_class": "RealmTokenizer",
      },
    },
    notes=tuple(notes),
  )


def _rules(model: Exported, name: str, tower: str | None) -> tuple[Rule, ...]:
  retriever = model.retriever
  # Open QA embeds questions only; its blocks are vectors already.
  query, block = SEPARATE_TOWERS
  if name == "embedder":
    towers = {"": choose_tower(retriever, tower)}
  elif name in ("encoder", "reader"):
    towers = {}
  elif retriever.shared_towers:
    towers = {EMBEDDER: SHARED_TOWER[0]}
  elif name == "scorer":
    towers = {QUERY_EMBEDDER: query, EMBEDDER: block}
  else:
    towers = {EMBEDDER: query}
  rules: list[Rule] = []
  for theirs, ours in towers.items():
    rules += realm_names.embedder(retriever.bert, tower=ours, theirs=theirs)
  if "reader" in PARTS_OF[_CLASSES[name]]:
    rules += realm_names.reader(model.reader.bert, _CLASSES[name])
  return tuple(rules)


def _require_realm(model: Exported, name: str) -> None:
  """Checks that the retriever is REALM's."""
  retriever = model.retriever
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
      "express; without a projection, --to=hf_bert can"
    )


def _config(model: Exported, name: str) -> dict[str, JsonValue]:
  retriever, reader = model.retriever, model.reader
  architecture = _CLASSES[name]
  parts = PARTS_OF[architecture]
  encoder = (retriever if "retriever" in parts else reader).bert
  config: dict[str, JsonValue] = {
    "architectures": [architecture],
    "model_type": "realm",
    "torch_dtype": "float32",
    **write_bert_config(encoder, vocab_size=model.vocabulary.vocab_size),
  }
  if retriever.projection_size is not None:
    config["retriever_proj_size"] = retriever.projection_size
  if "reader" in parts:
    config |= {
      "span_hidden_size": reader.span_size,
      "max_span_width": reader.max_answer_width,
      "reader_layer_norm_eps": reader.span_norm_eps,
    }
  if architecture in SPAN_READERS:
    config["reader_seq_len"] = reader.joint_length
  if name == "open_qa":
    config["num_block_records"] = 0
  return config
