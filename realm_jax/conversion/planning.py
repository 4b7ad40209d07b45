"""From a kind of input, and the options given, to a plan."""

import dataclasses
from pathlib import Path
from typing import Any

from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.bert import plan_tf_bert
from realm_jax.conversion.google.realm import plan_tf_realm
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.hugging_face.realm import plan_hf_realm
from realm_jax.conversion.plan import PARTS, ImportPlan, require_retriever

KINDS = ("hf_bert", "hf_realm", "tf_bert", "tf_realm")

# The options of a REALM, which has all others already.
_OF_REALM = ("score_scale", "separate_towers")


def plan_import(
  kind: str,
  input_path: Path,
  options: TowerOptions,
  *,
  block_input: Path | None = None,
  parts: tuple[str, ...] | None = None,
  tensor_prefix: str | None = None,
  vocab: Path | None = None,
) -> ImportPlan:
  """The plan of a kind; options that it has no use for are refused.

  Args:
    kind: one of `KINDS`.
    input_path: a directory; of TensorFlow's kinds, or a checkpoint's prefix.
    options: how vectors are made of plain BERT. A REALM is one already: of
      these, it has `score_scale` and `separate_towers` alone.
    block_input: of the block tower, where it has its own.
    parts: which to import; None takes all that there are.
    tensor_prefix: for hf_bert: see `plan_hf_bert`.
    vocab: for tf_realm: see `plan_tf_realm`.

  Raises:
    ConversionError: the input does not fit, or an option does not.
    VocabularyError: the input's vocabulary cannot be used.
  """
  if kind not in KINDS:
    raise ConversionError(f"--from={kind}; want one of {', '.join(KINDS)}")
  if kind != "hf_bert":
    _refuse(kind, tensor_prefix=tensor_prefix)
  if kind != "tf_realm":
    _refuse(kind, vocab=vocab)
  require_retriever(block_input, parts or PARTS)
  if kind == "hf_bert":
    return plan_hf_bert(
      input_path,
      options,
      block_input=block_input,
      parts=parts or PARTS,
      tensor_prefix=tensor_prefix,
    )
  if kind == "tf_bert":
    return plan_tf_bert(
      input_path, options, block_input=block_input, parts=parts or PARTS
    )
  choices = dataclasses.asdict(options)
  _refuse(kind, **{k: v for k, v in choices.items() if k not in _OF_REALM})
  if kind == "hf_realm":
    _refuse(kind, block_input=block_input)
    return plan_hf_realm(
      input_path,
      parts=parts,
      score_scale=options.score_scale,
      separate_towers=options.separate_towers,
    )
  return plan_tf_realm(
    input_path,
    block_input=block_input,
    parts=parts,
    vocab=vocab,
    score_scale=options.score_scale,
    separate_towers=options.separate_towers,
  )


def _refuse(kind: str, **options: Any) -> None:
  given = [f"--{name}" for name, value in options.items() if value is not None]
  if given:
    raise ConversionError(
      f"--from={kind} takes no {', '.join(given)}; its input leaves no choice"
    )
