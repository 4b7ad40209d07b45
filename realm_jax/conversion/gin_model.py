"""The gin file of an imported model, like gin/models/bert_base.gin."""

from collections.abc import Iterable

from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

_BERT_FIELDS = (
  "hidden_size num_layers num_heads intermediate_size max_positions "
  "layer_norm_eps activation attention_mask_value init_stddev"
).split()
_RETRIEVER_FIELDS = (
  "shared_towers pooling projection_size projection_norm_eps normalize"
).split()
# What the towers read, which is written where it is not REALM's.
_INPUT_FIELDS = "query_prefix block_prefix title_separator token_types".split()
_READER_FIELDS = "span_size span_norm_eps".split()


def gin_model(retriever: Retriever, reader: Reader, *, source: str) -> str:
  """Returns a gin file that binds RETRIEVER and READER to these modules.

  All sizes and numbers that the weights depend on are written out, except the
  vocabulary's, which the corpus gives. Values that a run may change are macros.
  Both modules have one encoder. The header names the `source` of the weights.
  """
  lines = [
    f"# The model of the weights imported from {source}.",
    "# It replaces gin/models/bert_base.gin with every file of gin/runs.",
    "# Sizes must stay; the macros may change.",
    "from __gin__ import dynamic_registration",
    "",
    "from realm_jax.models import bert",
    "from realm_jax.models import reader",
    "from realm_jax.models import retriever",
    "",
    *_bindings("bert.BertConfig", retriever.bert, _BERT_FIELDS),
    "bert.BertConfig.dropout_rate = %DROPOUT_RATE",
    "",
    "retriever.Retriever.bert = @bert.BertConfig()",
    *_bindings("retriever.Retriever", retriever, _RETRIEVER_FIELDS),
    "retriever.Retriever.projection_dropout_rate = %DROPOUT_RATE",
    "retriever.Retriever.score_scale = %SCORE_SCALE",
    *_bindings("retriever.Retriever", retriever, unusual_inputs(retriever)),
    "",
    "reader.Reader.bert = @bert.BertConfig()",
    "reader.Reader.joint_length = %JOINT_LENGTH",
    # Stages label answers up to the reader's width.
    "reader.Reader.max_answer_width = %MAX_ANSWER_WIDTH",
    *_bindings("reader.Reader", reader, _READER_FIELDS),
    "",
    f"DROPOUT_RATE = {retriever.bert.dropout_rate!r}",
    f"SCORE_SCALE = {retriever.score_scale!r}",
    f"JOINT_LENGTH = {reader.joint_length}",
    f"MAX_ANSWER_WIDTH = {reader.max_answer_width}",
    "RETRIEVER = @retriever.Retriever()",
    "READER = @reader.Reader()",
  ]
  return "\n".join(lines) + "\n"


def unusual_inputs(retriever: Retriever) -> dict[str, bool | tuple[int, ...]]:
  """Returns the fields that say what towers read, where it is not REALM's."""
  fields = {name: getattr(retriever, name) for name in _INPUT_FIELDS}
  return {
    name: value
    for name, value in fields.items()
    if value != getattr(Retriever, name)
  }


def _bindings(
  name: str, module: BertConfig | Retriever | Reader, fields: Iterable[str]
) -> list[str]:
  # gin reads both kinds of quotes.
  return [f"{name}.{field} = {getattr(module, field)!r}" for field in fields]
