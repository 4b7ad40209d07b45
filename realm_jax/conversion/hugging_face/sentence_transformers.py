"""The files that sentence-transformers adds to a BERT directory."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.config_file import (
  ConfigFile,
  read_config_file,
  read_json,
  read_optional,
)
from realm_jax.conversion.errors import ConversionError
from realm_jax.files.json_file import JsonValue
from realm_jax.models.retriever import Retriever

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models."
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"
_POOLING_FOLDER, _NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
_POOLING_KEYS = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
}
# The names that models have given to the prompts of queries and of blocks.
_QUERY_PROMPTS = ("query",)
_BLOCK_PROMPTS = ("document", "passage", "corpus")


@dataclasses.dataclass(frozen=True)
class SentenceModel:
  """How sentence vectors are made of BERT's last layer.

  Attributes:
    weights_dir: Directory of config.json and the weights.
    pooling: `cls` or `mean`.
    normalize: Whether vectors have length 1.
    query_prompt: Text before each query.
    block_prompt: Text before each passage.
    max_length: Maximum tokens of a text, if the files say it.
  """

  weights_dir: Path
  pooling: str
  normalize: bool
  query_prompt: str = ""
  block_prompt: str = ""
  max_length: int | None = None


def read_sentence_model(directory: Path) -> SentenceModel | None:
  """Reads what `modules.json` describes, if there is one."""
  path = directory / MODULES
  if not path.exists():
    return None
  modules = read_json(path)
  try:
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    folders = [directory / module["path"] for module in modules]
  except (TypeError, KeyError, AttributeError) as error:
    raise ConversionError(
      f"{path} is no list of modules with type and path"
    ) from error
  normalizes = kinds[2:] == [_NORMALIZE]
  if kinds[:2] != [_TRANSFORMER, _POOLING] or (kinds[2:] and not normalizes):
    raise ConversionError(
      f"{path} chains {', '.join(kinds)}; a tower here is {_TRANSFORMER}, "
      f"{_POOLING} and perhaps {_NORMALIZE} (not a Dense layer: the projection "
      "here is followed by a LayerNorm)"
    )
  config = read_config_file(folders[1] / "config.json")
  pooling = _pooling(config)
  query_prompt, block_prompt = _read_prompts(directory / _PROMPTS)
  has_prompt = bool(query_prompt or block_prompt)
  if has_prompt and pooling == "mean" and config.get("include_prompt") is False:
    raise ConversionError(
      f"{folders[1]} leaves the prompt out of the mean "
      "(include_prompt=false); the mean here is over all tokens"
    )
  lengths = read_optional(directory / _LENGTHS)
  max_length = lengths.get("max_seq_length")
  return SentenceModel(
    weights_dir=folders[0],
    pooling=pooling,
    normalize=normalizes,
    query_prompt=query_prompt,
    block_prompt=block_prompt,
    max_length=None if max_length is None else lengths.size("max_seq_length"),
  )


def _pooling(config: ConfigFile) -> str:
  modes = [
    key
    for key, value in config.entries.items()
    if key.startswith("pooling_mode_") and value
  ]
  # Later versions write one name instead.
  mode = config.get("pooling_mode")
  if isinstance(mode, str):
    keys = [key for key, ours in _POOLING_KEYS.items() if ours == mode]
    modes = keys or [mode]
  if len(modes) != 1 or modes[0] not in _POOLING_KEYS:
    raise ConversionError(
      f"{config.where} pools with {', '.join(modes) or 'nothing'}; want one of "
      f"{', '.join(_POOLING_KEYS)}"
    )
  return _POOLING_KEYS[modes[0]]


def _read_prompts(path: Path) -> tuple[str, str]:
  """Reads the prompts of queries and of blocks."""
  config = read_optional(path)
  prompts: Any = config.get("prompts") or {}
  if not isinstance(prompts, dict) or not all(
    isinstance(text, str) for text in prompts.values()
  ):
    raise ConversionError(
      f"{path} has prompts={prompts!r}; want texts by name, such as "
      '{"query": "query: "}, or no prompts'
    )
  default = config.get("default_prompt_name")
  usual = prompts.get(default, "") if isinstance(default, str) else ""

  def first(names: tuple[str, ...]) -> str:
    return next((prompts[n] for n in names if n in prompts), usual)

  return first(_QUERY_PROMPTS), first(_BLOCK_PROMPTS)


def describe(
  retriever: Retriever, prompts: Mapping[str, str]
) -> dict[str, JsonValue]:
  """Returns the contents of these files by path.

  The path of a folder without files ends in a slash.
  """
  kinds = {_TRANSFORMER: "", _POOLING: _POOLING_FOLDER}
  if retriever.normalize:
    kinds[_NORMALIZE] = _NORMALIZE_FOLDER
  modes = {k: ours == retriever.pooling for k, ours in _POOLING_KEYS.items()}
  max_length = retriever.bert.max_positions
  files: dict[str, JsonValue] = {
    MODULES: [
      {"idx": i, "name": str(i), "path": folder, "type": _PACKAGE + kind}
      for i, (kind, folder) in enumerate(kinds.items())
    ],
    f"{_POOLING_FOLDER}/config.json": {
      "word_embedding_dimension": retriever.bert.hidden_size,
      **modes,
      "pooling_mode_max_tokens": False,
      "pooling_mode_mean_sqrt_len_tokens": False,
    },
    _LENGTHS: {"max_seq_length": max_length, "do_lower_case": False},
  }
  if any(prompts.values()):
    files[_PROMPTS] = {"prompts": dict(prompts)}
  if retriever.normalize:
    files[f"{_NORMALIZE_FOLDER}/"] = None
  return files
