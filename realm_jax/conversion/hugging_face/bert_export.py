"""Exports a tower or the reader as a BERT directory of Hugging Face."""

from realm_jax.conversion import names
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import (
  Exported,
  ExportPlan,
  choose_tower,
  mask_note,
)
from realm_jax.conversion.hugging_face import sentence_transformers, tokenizer
from realm_jax.conversion.hugging_face.bert import HEAD
from realm_jax.conversion.hugging_face.config import (
  HF_ATTENTION_MASK_VALUE,
  write_bert_config,
)
from realm_jax.conversion.hugging_face.directory import CONFIG
from realm_jax.conversion.names import TORCH
from realm_jax.files.json_file import JsonValue
from realm_jax.models.bert import BertConfig

_READER_PREFIX = "bert."


def plan_hf_bert_export(
  model: Exported, *, part: str, tower: str | None
) -> ExportPlan:
  """Plans the export of one part.

  Args:
    model: Model to export.
    part: `retriever` (a BertModel) or `reader` (a BertForMaskedLM, without the
      span head).
    tower: `query` or `block`, if the retriever has two.

  Raises:
    ConversionError: If BERT cannot express the part.
  """
  if part == "retriever":
    return _retriever(model, tower)
  if tower is not None:
    raise ConversionError(f"--tower={tower}: a reader has none")
  config = model.reader.bert
  return ExportPlan(
    parts=("reader",),
    rules=names.masked_lm(
      TORCH, config, ours="reader", theirs=_READER_PREFIX, head=HEAD
    ),
    files=_files(config, model.vocabulary.vocab_size, "BertForMaskedLM"),
    notes=tuple(mask_note(config, HF_ATTENTION_MASK_VALUE)),
  )


def _files(
  config: BertConfig, vocab_size: int, architecture: str
) -> dict[str, JsonValue]:
  return {
    CONFIG: {
      "architectures": [architecture],
      "model_type": "bert",
      "torch_dtype": "float32",
      **write_bert_config(config, vocab_size=vocab_size),
    },
    tokenizer.CONFIG: tokenizer.tokenizer_config(
      max_length=config.max_positions
    ),
  }


def _retriever(model: Exported, tower: str | None) -> ExportPlan:
  retriever = model.retriever
  config = retriever.bert
  if retriever.projection_size is not None:
    raise ConversionError(
      f"the retriever projects to {retriever.projection_size} dimensions, "
      "which BERT does not; export it with --to=hf_realm, or the reader with "
      "--part=reader"
    )
  files = _files(config, model.vocabulary.vocab_size, "BertModel")
  notes = mask_note(config, HF_ATTENTION_MASK_VALUE)
  reasons = _inexpressible(model)
  if reasons:
    notes.append(
      f"no {sentence_transformers.MODULES}, for sentence-transformers has no "
      f"{', no '.join(reasons)}; make the vectors from config.json's BERT"
    )
  else:
    files |= sentence_transformers.describe(
      pooling=retriever.pooling,
      normalize=retriever.normalize,
      hidden_size=config.hidden_size,
      max_length=config.max_positions,
      prompts=_prompts(model),
    )
  if retriever.score_scale != 1.0:
    notes.append(f"score_scale={retriever.score_scale} is not written")
  path = choose_tower(retriever, tower)
  return ExportPlan(
    parts=("retriever",),
    rules=names.bert_tower(
      TORCH,
      config,
      pooling=retriever.pooling,
      ours=f"retriever/{path}",
      theirs="",
    ),
    files=files,
    notes=tuple(notes),
  )


def _inexpressible(model: Exported) -> list[str]:
  """Returns the traits of the towers that sentence-transformers lacks."""
  checks = {
    "pooling by BERT's pooler": model.retriever.pooling == "pooler",
    "[SEP] between title and body": model.retriever.title_separator,
    "second token type": model.retriever.token_types,
  }
  return [name for name, is_so in checks.items() if is_so]


def _prompts(model: Exported) -> dict[str, str]:
  """Returns the prefixes as texts that give the same tokens again.

  Raises:
    ConversionError: If there is no such text.
  """
  texts = {}
  for name, ids in (
    ("query", model.retriever.query_prefix),
    ("document", model.retriever.block_prefix),
  ):
    # The space separates the prompt from the word that follows.
    text = f"{model.vocabulary.decode(ids)} " if ids else ""
    if tuple(model.vocabulary.encode(text) if text else ()) != tuple(ids):
      raise ConversionError(
        f"the {name} prefix {ids} is not what this vocabulary makes of any "
        "text; it cannot be a prompt of sentence-transformers"
      )
    texts[name] = text
  return texts
