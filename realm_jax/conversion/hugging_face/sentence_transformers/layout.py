"""Files and modules of a directory of sentence-transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from realm_jax.conversion.config_file import ConfigFile
from realm_jax.conversion.errors import ConversionError
from realm_jax.files.json_file import JsonValue

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
SETTINGS = "realm_jax.json"
CONFIG = "config.json"
PACKAGE = "sentence_transformers.models."
TRANSFORMER, POOLING, DENSE, LAYER_NORM, NORMALIZE = (
  "Transformer",
  "Pooling",
  "Dense",
  "LayerNorm",
  "Normalize",
)
TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"
POOLING_KEYS = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
}
# Modules of torch in a Dense and in a LayerNorm.
LINEAR, NORM = "linear", "norm"
# The epsilon of torch's LayerNorm, which this LayerNorm has no setting for.
NORM_EPS = 1e-5
_MAX_EPS_DIFFERENCE = 2e-10


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of a retriever that sentence-transformers has no place for.

  The library does not read their file, `realm_jax.json`; an import does. The
  defaults are what a directory without it means.

  Attributes:
    title_separator: Whether [SEP] separates title and body.
    token_types: Whether tokens after the first [SEP] are of type 1.
    score_scale: Factor of the inner products; None leaves it open.
    projection_norm_eps: Epsilon of the LayerNorm that the projection stands
      for.
    projection_scale: Factor of the projection's stored weights.
  """

  title_separator: bool = False
  token_types: bool = False
  score_scale: float | None = None
  projection_norm_eps: float = NORM_EPS
  projection_scale: float = 1.0

  @classmethod
  def read(cls, config: ConfigFile) -> "Settings":
    """Reads the entries of the file; raises `ConversionError` for others."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := config.entries.keys() - fields:
      raise ConversionError(
        f"{config.where} has {', '.join(sorted(unknown))}; want "
        f"{', '.join(fields)}: a later version may have written it"
      )
    values: dict[str, Any] = {}
    for name in config.entries:
      value = config.get(name)
      if isinstance(fields[name].default, bool):
        if not isinstance(value, bool):
          raise ConversionError(
            f"{config.where} has {name}={value!r}; want true or false"
          )
        values[name] = value
      else:
        values[name] = config.number(name)
    settings = cls(**values)
    if settings.projection_scale <= 0:
      raise ConversionError(
        f"{config.where} has projection_scale={settings.projection_scale}; "
        "want a number above 0"
      )
    return settings

  def to_json(self) -> Mapping[str, JsonValue]:
    """Returns the entries of the file."""
    return dataclasses.asdict(self)


def projection_scale(norm_eps: float) -> float:
  """Returns the factor by which the projection before a LayerNorm is written.

  LayerNorm (v − mean) / √(var + ε) is the same of c · v with c² · ε. Its ε is
  1e-5 in sentence-transformers, so weights that are c times as large give it an
  effective ε of 1e-5 / c². c is the least power of two with which this is the
  retriever's to 2e-10: a power of two rounds no weight, and a small one leaves
  room in float16. Where the elements of a vector have a variance of 1e-4, the
  remaining difference of ε changes the vector by a millionth.

  Raises:
    ConversionError: No such factor exists.
  """
  for exponent in range(9):
    scale = 2.0**exponent
    if abs(NORM_EPS / scale**2 - norm_eps) <= _MAX_EPS_DIFFERENCE:
      return scale
  raise ConversionError(
    f"the retriever has projection_norm_eps={norm_eps}; a LayerNorm of "
    f"sentence-transformers can stand for {NORM_EPS}, its own, and for less "
    f"than {_MAX_EPS_DIFFERENCE}"
  )
