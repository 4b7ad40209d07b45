"""Exports a retriever's tower to a directory of sentence-transformers."""

from realm_jax.conversion import names
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import config, exports, tokenizer
from realm_jax.conversion.hugging_face.exports import ExportPlan
from realm_jax.conversion.hugging_face.sentence_transformers import (
  layout,
  model_card,
)
from realm_jax.conversion.hugging_face.sentence_transformers.layout import (
  DENSE,
  LAYER_NORM,
  NORMALIZE,
  POOLING,
  TRANSFORMER,
  Settings,
)
from realm_jax.conversion.names import Dialect
from realm_jax.conversion.parameters import BoundModel
from realm_jax.files.json_file import JsonValue
from realm_jax.models.retriever import Retriever

_README = "README.md"


def plan_sentence_export(model: BoundModel, tower: str | None) -> ExportPlan:
  """Plans the export of a tower; both, if the retriever shares one.

  Args:
    model: Model whose retriever is exported.
    tower: `query` or `block`, if the retriever has two. Each makes a directory
      of its own: they load with every version of sentence-transformers, unlike
      a Router, and an import reads them back.

  Raises:
    ConversionError: The library cannot express the retriever, or the tower is
      not chosen.
  """
  retriever = model.retriever
  encoder = retriever.bert
  name = exports.choose_tower(retriever, tower)
  chain = _Chain()
  chain.add(TRANSFORMER, None, folder="")
  chain.add(POOLING, _pooling(retriever))
  pooler = projection = norm = ""
  scale = 1.0
  if retriever.pooling == "pooler":
    size = encoder.hidden_size
    pooler = chain.add(DENSE, _dense(size, size, layout.TANH))
  if retriever.projection_size is not None:
    scale = layout.projection_scale(retriever.projection_norm_eps)
    size = retriever.projection_size
    linear = _dense(encoder.hidden_size, size, layout.IDENTITY)
    projection = chain.add(DENSE, linear)
    norm = chain.add(LAYER_NORM, {"dimension": size})
  if retriever.normalize:
    chain.add(NORMALIZE, None)
  settings = Settings(
    title_separator=retriever.title_separator,
    token_types=retriever.token_types,
    score_scale=retriever.score_scale,
    projection_norm_eps=retriever.projection_norm_eps
    if projection
    else layout.NORM_EPS,
    projection_scale=scale,
  )
  prompts = _prompts(model)
  # Where types are among these names, the body of a pair has the type 1.
  inputs = ["input_ids", "attention_mask"]
  if retriever.token_types:
    inputs.insert(1, "token_type_ids")
  files = {
    **exports.class_files(encoder, "BertModel"),
    tokenizer.CONFIG: {
      **tokenizer.tokenizer_config("BertTokenizer", encoder.max_positions),
      "model_input_names": inputs,
    },
    layout.MODULES: chain.modules,
    layout.PROMPTS: {
      "prompts": prompts,
      "default_prompt_name": None,
      "similarity_fn_name": "dot",
    },
    layout.LENGTHS: {
      "max_seq_length": encoder.max_positions,
      "do_lower_case": False,
      # BERT's own pooler is not in the weights. With it, the library would warn
      # of random values.
      "model_args": {"add_pooling_layer": False},
    },
    layout.SETTINGS: settings.to_json(),
    **chain.files,
  }
  return ExportPlan(
    parts=("retriever",),
    rules=names.tower(
      Dialect.TORCH,
      encoder,
      name,
      "",
      pooler=bool(pooler),
      pooler_dense=f"{pooler}/{layout.LINEAR}",
      projection=f"{projection}/{layout.LINEAR}" if projection else "",
      norm=f"{norm}/{layout.NORM}",
      projection_scale=scale,
    ),
    files=files,
    texts={_README: model_card.model_card(retriever, prompts, tower=tower)},
    folders=tuple(folder for folder in (pooler, projection, norm) if folder),
    notes=(*config.mask_note(encoder), *_notes(retriever, scale)),
  )


class _Chain:
  """The modules of a directory, and the files of their folders."""

  def __init__(self):
    self.modules: list[JsonValue] = []
    self.files: dict[str, JsonValue] = {}

  def add(
    self, kind: str, settings: JsonValue, *, folder: str | None = None
  ) -> str:
    """Adds a module with the settings in its config.json; returns its folder.

    A module of a folder without settings has an empty folder.
    """
    number = len(self.modules)
    if folder is None:
      folder = f"{number}_{kind}"
      path = f"{folder}/{layout.CONFIG}" if settings else f"{folder}/"
      self.files[path] = settings
    kind = layout.PACKAGE + kind
    self.modules.append(
      {"idx": number, "name": str(number), "path": folder, "type": kind}
    )
    return folder


def _pooling(retriever: Retriever) -> JsonValue:
  """Returns the settings of the pooling, as all versions read them."""
  pooling = "mean" if retriever.pooling == "mean" else "cls"
  modes = {key: mode == pooling for key, mode in layout.POOLING_KEYS.items()}
  return {
    "word_embedding_dimension": retriever.bert.hidden_size,
    **modes,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
  }


def _dense(inputs: int, outputs: int, activation: str) -> JsonValue:
  return {
    "in_features": inputs,
    "out_features": outputs,
    "bias": True,
    "activation_function": activation,
  }


def _prompts(model: BoundModel) -> dict[str, JsonValue]:
  """Returns the prefixes as texts that give the same tokens again."""
  texts: dict[str, JsonValue] = {}
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


def _notes(retriever: Retriever, scale: float) -> list[str]:
  notes = [f"how texts are given to the model: {_README}"]
  if scale != 1.0:
    notes.append(
      f"the projection is written times {scale:g}, so that the LayerNorm of "
      f"sentence-transformers, of epsilon {layout.NORM_EPS:g}, stands for one "
      f"of {layout.NORM_EPS / scale**2:.1e} (the retriever's: "
      f"{retriever.projection_norm_eps:g})"
    )
  if retriever.score_scale != 1.0:
    notes.append(
      f"score_scale={retriever.score_scale:g} is in {layout.SETTINGS}, which "
      "sentence-transformers does not read: its similarity ranks alike, and is "
      "smaller by this factor"
    )
  return notes
