"""The gin file of a model: in the shape of gin/models/bert_base.gin."""

from typing import Any

from realm_jax.conversion.tower_inputs import unusual_inputs
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

NAME = "model.gin"

_BERT_FIELDS = (
  "hidden_size",
  "num_layers",
  "num_heads",
  "intermediate_size",
  "max_positions",
  "layer_norm_eps",
  "activation",
  "attention_mask_value",
  "init_stddev",
)
_RETRIEVER_FIELDS = (
  "shared_towers",
  "pooling",
  "projection_size",
  "projection_norm_eps",
  "normalize",
)
_READER_FIELDS = ("span_size", "span_norm_eps", "max_answer_width")


def gin_model(retriever: Retriever, reader: Reader, *, source: str) -> str:
  """A gin file that binds RETRIEVER and READER to these modules.

  Sizes and numbers that weights depend on are all written out; the vocabulary
  is the corpus's. What a run may change is a macro.

  Args:
    retriever: the towers.
    reader: the reader; its encoder is the retriever's.
    source: where the weights come from, for the header.

  Raises:
    ValueError: the two have different encoders.
  """
  if retriever.bert != reader.bert:
    raise ValueError(
      f"one encoder for both is wanted, not {retriever.bert} and {reader.bert}"
    )
  width = reader.max_answer_width
  is_usual_width = width == Reader.max_answer_width
  lines = [
    f"# The model of the weights imported from {source}.",
    "# It takes the place of gin/models/bert_base.gin with every file of",
    "# gin/runs. Sizes must stay; the macros may change.",
    "from __gin__ import dynamic_registration",
    "",
    "from realm_jax.models import bert",
    "from realm_jax.models import reader",
    "from realm_jax.models import retriever",
    *(
      []
      if is_usual_width
      else ["from realm_jax.training.stages import open_qa"]
    ),
    "",
    *_bindings("bert.BertConfig", retriever.bert, _BERT_FIELDS),
    "bert.BertConfig.dropout_rate = %DROPOUT_RATE",
    "",
    "retriever.Retriever.bert = @bert.BertConfig()",
    *_bindings("retriever.Retriever", retriever, _RETRIEVER_FIELDS),
    "retriever.Retriever.projection_dropout_rate = %DROPOUT_RATE",
    "retriever.Retriever.score_scale = %SCORE_SCALE",
    *_bindings(
      "retriever.Retriever", retriever, tuple(unusual_inputs(retriever))
    ),
    "",
    "reader.Reader.bert = @bert.BertConfig()",
    "reader.Reader.joint_length = %JOINT_LENGTH",
    *_bindings("reader.Reader", reader, _READER_FIELDS),
    # The stage labels spans of the reader's widths.
    *([] if is_usual_width else [f"open_qa.OpenQa.max_answer_width = {width}"]),
    "",
    f"DROPOUT_RATE = {retriever.bert.dropout_rate!r}",
    f"SCORE_SCALE = {retriever.score_scale!r}",
    f"JOINT_LENGTH = {reader.joint_length}",
    "RETRIEVER = @retriever.Retriever()",
    "READER = @reader.Reader()",
  ]
  return "\n".join(lines) + "\n"


def _bindings(name: str, values: Any, fields: tuple[str, ...]) -> list[str]:
  return [
    f"{name}.{field} = {_literal(getattr(values, field))}" for field in fields
  ]


def _literal(value: Any) -> str:
  return f'"{value}"' if isinstance(value, str) else repr(value)
