"""What sentence-transformers adds to a BERT directory, both ways."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.directory import read_any_json, read_json

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
# By the names that these modules have had for the two sides.
_QUERY_PROMPTS = ("query",)
_BLOCK_PROMPTS = ("document", "passage", "corpus")


@dataclasses.dataclass(frozen=True)
class SentenceModel:
  """How sentence vectors are made of BERT's last layer.

  Attributes:
    weights_dir: where config.json and the weights are.
    pooling: `cls` or `mean`.
    normalize: whether vectors have length 1.
    query_prompt: text before each query.
    block_prompt: text before each passage.
    max_length: tokens of a text; None where it does not say.
  """

  weights_dir: Path
  pooling: str
  normalize: bool
  query_prompt: str = ""
  block_prompt: str = ""
  max_length: int | None = None


def read_sentence_model(directory: Path) -> SentenceModel | None:
  """What `modules.json` describes; None where there is none.

  Raises:
    ConversionError: it describes something that a tower here is not.
  """
  path = directory / MODULES
  if not path.exists():
    return None
  modules = read_any_json(path)
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
      f"{_POOLING} and perhaps {_NORMALIZE} (a Dense layer has no place: the "
      "projection here is followed by a LayerNorm)"
    )
  pooling = _read_pooling(folders[1] / "config.json")
  prompts = _read_prompts(directory / _PROMPTS)
  if (
    any(prompts)
    and pooling == "mean"
    and read_json(folders[1] / "config.json").get("include_prompt") is False
  ):
    raise ConversionError(
      f"{folders[1]} leaves the prompt out of the mean "
      "(include_prompt=false); the mean here is over all tokens"
    )
  lengths = directory / _LENGTHS
  limits = read_json(lengths) if lengths.exists() else {}
  return SentenceModel(
    weights_dir=folders[0],
    pooling=pooling,
    normalize=normalizes,
    query_prompt=prompts[0],
    block_prompt=prompts[1],
    max_length=limits.get("max_seq_length"),
  )


def _read_pooling(path: Path) -> str:
  config = read_json(path)
  modes = [
    key
    for key, value in config.items()
    if key.startswith("pooling_mode_") and value
  ]
  # Later versions write one name instead.
  if isinstance(config.get("pooling_mode"), str):
    modes = [
      key
      for key, ours in _POOLING_KEYS.items()
      if ours == config["pooling_mode"]
    ] or [config["pooling_mode"]]
  if len(modes) != 1 or modes[0] not in _POOLING_KEYS:
    raise ConversionError(
      f"{path} pools with {', '.join(modes) or 'nothing'}; want one of "
      f"{', '.join(_POOLING_KEYS)}"
    )
  return _POOLING_KEYS[modes[0]]


def _read_prompts(path: Path) -> tuple[str, str]:
  config = read_json(path) if path.exists() else {}
  prompts = config.get("prompts") or {}
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
  *,
  pooling: str,
  normalize: bool,
  hidden_size: int,
  max_length: int,
  prompts: Mapping[str, str],
) -> dict[str, Any]:
  """The files of such a directory beside BERT's: their contents by path.

  A folder without files has its path end in a slash.
  """
  kinds = {_TRANSFORMER: "", _POOLING: _POOLING_FOLDER}
  if normalize:
    kinds[_NORMALIZE] = _NORMALIZE_FOLDER
  files: dict[str, Any] = {
    MODULES: [
      {"idx": i, "name": str(i), "path": folder, "type": _PACKAGE + kind}
      for i, (kind, folder) in enumerate(kinds.items())
    ],
    f"{_POOLING_FOLDER}/config.json": {
      "word_embedding_dimension": hidden_size,
      **{key: ours == pooling for key, ours in _POOLING_KEYS.items()},
      "pooling_mode_max_tokens": False,
      "pooling_mode_mean_sqrt_len_tokens": False,
    },
    _LENGTHS: {"max_seq_length": max_length, "do_lower_case": False},
  }
  if any(prompts.values()):
    files[_PROMPTS] = {"prompts": dict(prompts)}
  if normalize:
    files[f"{_NORMALIZE_FOLDER}/"] = None
  return files
