"""Reads how a directory of sentence-transformers makes vectors."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.bert_models import ProjectionWeights
from realm_jax.conversion.config_file import (
  ConfigFile,
  read_config_file,
  read_json,
  read_optional,
)
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.sentence_transformers import layout
from realm_jax.conversion.hugging_face.sentence_transformers.layout import (
  DENSE,
  LAYER_NORM,
  NORMALIZE,
  POOLING,
  TRANSFORMER,
  Settings,
)

# The names that models have given to the prompts of queries and of blocks.
_QUERY_PROMPTS = ("query",)
_BLOCK_PROMPTS = ("document", "passage", "corpus")


@dataclasses.dataclass(frozen=True)
class SentenceModel:
  """How sentence vectors are made of BERT's last layer.

  Attributes:
    weights_dir: Directory of config.json and BERT's weights.
    pooling: `pooler`, `cls` or `mean`.
    normalize: Whether vectors have length 1.
    query_prompt: Text before each query.
    block_prompt: Text before each passage.
    max_length: Maximum tokens of a text, if the files say it.
    folders: Directories of modules with weights of their own, by name.
    pooler: Name of the module that is BERT's pooler; empty without one.
    projection: Names of the projection's modules; None without one.
    settings: What only a directory of this project says.
  """

  weights_dir: Path
  pooling: str
  normalize: bool
  query_prompt: str = ""
  block_prompt: str = ""
  max_length: int | None = None
  folders: Mapping[str, Path] = dataclasses.field(default_factory=dict)
  pooler: str = ""
  projection: ProjectionWeights | None = None
  settings: Settings = dataclasses.field(default_factory=Settings)

  @property
  def method(self) -> tuple[object, ...]:
    """What two towers of a retriever must have in common."""
    return self.pooling, self.normalize, self.projection, self.settings


def read_sentence_model(directory: Path) -> SentenceModel | None:
  """Reads what `modules.json` describes, if there is one."""
  if not (directory / layout.MODULES).exists():
    return None
  chain = _read_chain(directory)
  weights_dir = chain.take(TRANSFORMER)
  pooling_dir = chain.take(POOLING)
  config = read_config_file(pooling_dir / layout.CONFIG)
  pooling = _pooling(config)
  query_prompt, block_prompt = _read_prompts(directory / layout.PROMPTS)
  has_prompt = bool(query_prompt or block_prompt)
  if has_prompt and pooling == "mean" and config.get("include_prompt") is False:
    raise ConversionError(
      f"{pooling_dir} leaves the prompt out of the mean "
      "(include_prompt=false); the mean here is over all tokens"
    )
  settings = Settings.read(read_optional(directory / layout.SETTINGS))
  folders: dict[str, Path] = {}
  pooler, projection = "", None
  if pooling == "cls" and chain.next_is(DENSE, layout.TANH):
    folder = chain.take(DENSE)
    _read_dense(folder)
    folders[folder.name] = folder
    pooling, pooler = "pooler", f"{folder.name}/{layout.LINEAR}"
  if chain.next_is(DENSE, layout.IDENTITY):
    dense, norm = chain.take(DENSE), chain.take(LAYER_NORM)
    folders |= {dense.name: dense, norm.name: norm}
    projection = ProjectionWeights(
      dense=f"{dense.name}/{layout.LINEAR}",
      norm=f"{norm.name}/{layout.NORM}",
      size=_read_dense(dense),
      norm_eps=settings.projection_norm_eps,
      scale=settings.projection_scale,
    )
  normalize = chain.next_is(NORMALIZE)
  if normalize:
    chain.take(NORMALIZE)
  chain.require_end()
  lengths = read_optional(directory / layout.LENGTHS)
  max_length = lengths.get("max_seq_length")
  return SentenceModel(
    weights_dir=weights_dir,
    pooling=pooling,
    normalize=normalize,
    query_prompt=query_prompt,
    block_prompt=block_prompt,
    max_length=None if max_length is None else lengths.size("max_seq_length"),
    folders=folders,
    pooler=pooler,
    projection=projection,
    settings=settings,
  )


class _Chain:
  """The modules of a directory, taken from the first to the last."""

  def __init__(self, where: Path, kinds: list[str], folders: list[Path]):
    self._where = where
    self._kinds, self._folders = kinds, folders
    self._taken = 0

  def next_is(self, kind: str, activation: str = "") -> bool:
    """Returns whether the next module is of a kind, and has the activation."""
    if self._taken == len(self._kinds) or self._kinds[self._taken] != kind:
      return False
    if not activation:
      return True
    config = read_config_file(self._folders[self._taken] / layout.CONFIG)
    return config.get("activation_function") == activation

  def take(self, kind: str) -> Path:
    """Returns the folder of the next module, which must be of a kind."""
    if not self.next_is(kind):
      raise self._error()
    self._taken += 1
    return self._folders[self._taken - 1]

  def require_end(self) -> None:
    """Raises `ConversionError` if a module is left."""
    if self._taken < len(self._kinds):
      raise self._error()

  def _error(self) -> ConversionError:
    return ConversionError(
      f"{self._where} chains {', '.join(self._kinds)}; a tower here is "
      f"{TRANSFORMER}, {POOLING}, perhaps a {DENSE} with tanh after [CLS], "
      f"perhaps a {DENSE} without activation and its {LAYER_NORM}, and perhaps "
      f"{NORMALIZE}"
    )


def _read_chain(directory: Path) -> _Chain:
  path = directory / layout.MODULES
  modules = read_json(path)
  try:
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    folders = [directory / module["path"] for module in modules]
  except (TypeError, KeyError, AttributeError) as error:
    raise ConversionError(
      f"{path} is no list of modules with type and path"
    ) from error
  return _Chain(path, kinds, folders)


def _read_dense(folder: Path) -> int:
  """Returns the outputs of a linear layer, which must be a plain one."""
  config = read_config_file(folder / layout.CONFIG)
  usual = {
    "bias": True,
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
  }
  for key, value in usual.items():
    if config.get(key) not in (None, value):
      raise ConversionError(
        f"{config.where} has {key}={config.get(key)!r}; want {value!r}, for "
        "the linear layers of towers here have a bias and nothing else"
      )
  return config.size("out_features")


def _pooling(config: ConfigFile) -> str:
  modes = [
    key
    for key, value in config.entries.items()
    if key.startswith("pooling_mode_") and value
  ]
  # Later versions write one name instead.
  mode = config.get("pooling_mode")
  if isinstance(mode, str):
    keys = [key for key, ours in layout.POOLING_KEYS.items() if ours == mode]
    modes = keys or [mode]
  if len(modes) != 1 or modes[0] not in layout.POOLING_KEYS:
    raise ConversionError(
      f"{config.where} pools with {', '.join(modes) or 'nothing'}; want one of "
      f"{', '.join(layout.POOLING_KEYS)}"
    )
  return layout.POOLING_KEYS[modes[0]]


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
