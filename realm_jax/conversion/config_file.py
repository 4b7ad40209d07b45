"""JSON files that describe a foreign model."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.errors import ConversionError
from realm_jax.files.json_file import JsonValue


@dataclasses.dataclass(frozen=True)
class ConfigFile:
  """The JSON object of a file such as `config.json`.

  Attributes:
    entries: Entries of the object.
    where: Name of the file in errors.
  """

  entries: Mapping[str, JsonValue]
  where: str

  def get(self, key: str, default: JsonValue = None) -> JsonValue:
    """Returns an entry as it is."""
    return self.entries.get(key, default)

  def size(self, key: str, default: int | None = None) -> int:
    """Returns an entry that must be a whole number of 1 or more."""
    wanted = "a whole number of 1 or more"
    value = self.number(key, default, wanted)
    if value < 1 or value % 1:
      raise self._error(key, wanted)
    return int(value)

  def number(
    self, key: str, default: float | None = None, wanted: str = "a number"
  ) -> float:
    """Returns an entry that must be a number."""
    value = self.get(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
      raise self._error(key, wanted)
    return float(value)

  def _error(self, key: str, wanted: str) -> ConversionError:
    return ConversionError(
      f"{self.where} has {key}={self.get(key)!r}; want {wanted}: is it the "
      "file of these weights?"
    )


def read_config_file(path: Path) -> ConfigFile:
  """Reads a JSON object; raises `ConversionError` if the file has none."""
  found = read_json(path)
  if not isinstance(found, Mapping):
    raise ConversionError(f"{path} holds no JSON object")
  return ConfigFile(found, str(path))


def read_optional(path: Path) -> ConfigFile:
  """Reads a JSON object; without a file it has no entries."""
  return read_config_file(path) if path.exists() else ConfigFile({}, str(path))


def read_json(path: Path) -> Any:
  """Reads a JSON file; raises `ConversionError` if it is none."""
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise ConversionError(
      f"{path} cannot be read ({error.strerror}); want a directory that "
      "`save_pretrained` wrote"
    ) from error
  except ValueError as error:
    raise ConversionError(f"{path} is not JSON: {error}") from error
