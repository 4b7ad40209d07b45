"""What the user asks to import, and the plan that it gives."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from etils import epath

from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.bert import plan_tf_bert
from realm_jax.conversion.google.realm import plan_tf_realm
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.hugging_face.realm import plan_hf_realm
from realm_jax.conversion.plan import PARTS, ImportPlan, require_retriever
from realm_jax.files.json_file import JsonValue

KINDS = ("hf_bert", "hf_realm", "tf_bert", "tf_realm")

# The options that a REALM leaves open.
_REALM_OPTIONS = ("score_scale", "separate_towers")


@dataclasses.dataclass(frozen=True)
class ImportSource:
  """The weights to import.

  Attributes:
    kind: One of `KINDS`.
    input: Local directory, or the prefix of a TensorFlow checkpoint.
    block_input: Input of the block tower, if it has its own.
    parts: `retriever`, `reader` or both; None takes what the input has.
    tensor_prefix: Prefix of `embeddings.…` in the names of tensors, for
      hf_bert; None finds it.
    vocab: Vocabulary file, if a tf_realm input has none.
  """

  kind: str
  input: epath.PathLike
  block_input: epath.PathLike | None = None
  parts: Sequence[str] | None = None
  tensor_prefix: str | None = None
  vocab: epath.PathLike | None = None


def plan_import(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Returns the plan of an import; options of no use to it are refused.

  Args:
    source: Weights to import.
    options: How vectors are made of a plain BERT. A REALM leaves only
      `score_scale` and `separate_towers` open.

  Raises:
    ConversionError: If the input or an option does not fit.
    VocabularyError: If the input's vocabulary cannot be used.
  """
  kind, path = source.kind, Path(source.input)
  block_input = None if source.block_input is None else Path(source.block_input)
  vocab = None if source.vocab is None else Path(source.vocab)
  parts = None if source.parts is None else tuple(source.parts)
  if kind not in KINDS:
    raise ConversionError(f"--from={kind}; want one of {', '.join(KINDS)}")
  if kind != "hf_bert":
    _refuse(kind, {"tensor_prefix": source.tensor_prefix})
  if kind != "tf_realm":
    _refuse(kind, {"vocab": vocab})
  require_retriever(block_input, parts or PARTS)
  if kind == "hf_bert":
    return plan_hf_bert(
      path,
      options,
      block_input=block_input,
      parts=parts or PARTS,
      tensor_prefix=source.tensor_prefix,
    )
  if kind == "tf_bert":
    return plan_tf_bert(
      path, options, block_input=block_input, parts=parts or PARTS
    )
  choices = dataclasses.asdict(options)
  _refuse(kind, {k: v for k, v in choices.items() if k not in _REALM_OPTIONS})
  if kind == "hf_realm":
    _refuse(kind, {"block_input": block_input})
    return plan_hf_realm(
      path,
      parts=parts,
      score_scale=options.score_scale,
      separate_towers=options.separate_towers,
    )
  return plan_tf_realm(
    path,
    block_input=block_input,
    parts=parts,
    vocab=vocab,
    score_scale=options.score_scale,
    separate_towers=options.separate_towers,
  )


def _refuse(kind: str, options: Mapping[str, JsonValue | Path]) -> None:
  given = [f"--{name}" for name, value in options.items() if value is not None]
  if given:
    raise ConversionError(
      f"--from={kind} takes no {', '.join(given)}; its input leaves no choice"
    )
