"""A model as one of transformers' REALM classes."""

from typing import Any

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import (
  Exported,
  ExportPlan,
  choose_tower,
  mask_note,
)
from realm_jax.conversion.hugging_face import directory as hf_directory
from realm_jax.conversion.hugging_face import realm_names as hf_realm_names
from realm_jax.conversion.hugging_face import tokenizer as hf_tokenizer
from realm_jax.conversion.hugging_face.config import (
  HF_ATTENTION_MASK_VALUE,
  write_bert_config,
)
from realm_jax.conversion.hugging_face.realm_names import (
  EMBEDDER,
  PARTS_OF,
  QUERY_EMBEDDER,
  READER,
)
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import SEPARATE_TOWERS, SHARED_TOWER
from realm_jax.conversion.tower_inputs import unusual_inputs

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
  """The plan of exporting one of `MODELS`.

  Args:
    model: what to export.
    name: which class.
    tower: `query` or `block`, for an embedder of a retriever with two.

  Raises:
    ConversionError: that class cannot be what the model is.
  """
  architecture = _CLASSES[name]
  parts = PARTS_OF[architecture]
  if tower is not None and name != "embedder":
    raise ConversionError(
      f"--tower={tower} is for --model=embedder; {name} takes what it needs"
    )
  encoder = (model.retriever if "retriever" in parts else model.reader).bert
  notes = mask_note(encoder, HF_ATTENTION_MASK_VALUE)
  if "retriever" in parts:
    _require_realm(model, name)
  if parts == ("retriever", "reader") and model.reader.bert != encoder:
    raise ConversionError(
      "retriever and reader have different encoders, where a RealmForOpenQA "
      "has one configuration; export --model=embedder and --model=reader"
    )
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
  rules = _rules(model, name, tower)
  return ExportPlan(
    parts=parts,
    rules=rules,
    files={
      hf_directory.CONFIG: _config(model, name, architecture),
      hf_tokenizer.CONFIG: {
        **hf_tokenizer.tokenizer_config(max_length=encoder.max_positions),
        "tokenizer_class": "RealmTokenizer",
      },
    },
    notes=tuple(notes),
  )


def _rules(model: Exported, name: str, tower: str | None) -> tuple[Rule, ...]:
  retriever, reader = model.retriever, model.reader

  def embedder(ours: str, theirs: str) -> tuple[Rule, ...]:
    return hf_realm_names.embedder(retriever.bert, ours=ours, theirs=theirs)

  shared = f"retriever/{SHARED_TOWER[0]}"
  query, block = (f"retriever/{tower}" for tower in SEPARATE_TOWERS)
  if name == "embedder":
    return embedder(choose_tower(retriever, tower), "")
  if name == "scorer" and not retriever.shared_towers:
    return embedder(query, QUERY_EMBEDDER) + embedder(block, EMBEDDER)
  if name == "scorer":
    return embedder(shared, EMBEDDER)
  if name == "encoder":
    return hf_realm_names.masked_lm(reader.bert, is_tied=True)
  theirs = READER if name == "open_qa" else ""
  rules = hf_realm_names.masked_lm(
    reader.bert, is_tied=False, theirs=theirs
  ) + hf_realm_names.span_head(theirs=theirs)
  if name == "open_qa":
    # It embeds questions alone; its blocks are vectors already.
    ours = shared if retriever.shared_towers else query
    rules = embedder(ours, EMBEDDER) + rules
  return rules


def _require_realm(model: Exported, name: str) -> None:
  """Refuses a retriever that is not REALM's."""
  retriever = model.retriever
  wrong = {
    f"pooling={retriever.pooling!r}": retriever.pooling != "pooler",
    "no projection": retriever.projection_size is None,
    "normalize=True": retriever.normalize,
    # An embedder's vectors know nothing of it.
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
      "be; without a projection, --to=hf_bert can"
    )


def _config(model: Exported, name: str, architecture: str) -> dict[str, Any]:
  retriever, reader = model.retriever, model.reader
  parts = PARTS_OF[architecture]
  encoder = (retriever if "retriever" in parts else reader).bert
  config = {
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
  if name in ("reader", "open_qa"):
    config["reader_seq_len"] = reader.joint_length
  if name == "open_qa":
    config["num_block_records"] = 0
  return config
