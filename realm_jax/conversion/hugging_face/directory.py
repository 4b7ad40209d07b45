"""A directory as Hugging Face's `save_pretrained` leaves it."""

import json
from pathlib import Path
from typing import Any

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.safetensors_source import (
  SafetensorsSource,
)
from realm_jax.conversion.hugging_face.torch_file import TorchFile
from realm_jax.conversion.tensors import TensorSource

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TORCH_WEIGHTS = "pytorch_model.bin"
_TORCH_INDEX = "pytorch_model.bin.index.json"


def require_directory(directory: Path) -> None:
  """Raises `ConversionError` where there is no such directory."""
  if not directory.is_dir():
    raise ConversionError(
      f"{directory} is no local directory; want one with {CONFIG}, {WEIGHTS} "
      "and vocab.txt"
    )


def read_json(path: Path) -> dict[str, Any]:
  """The object of a JSON file; raises `ConversionError` where it is none."""
  found = read_any_json(path)
  if not isinstance(found, dict):
    raise ConversionError(f"{path} holds no JSON object")
  return found


def read_any_json(path: Path) -> Any:
  """What a JSON file holds; raises `ConversionError` where it is none."""
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise ConversionError(
      f"{path} cannot be read ({error.strerror}); want a directory that "
      "`save_pretrained` wrote"
    ) from error
  except ValueError as error:
    raise ConversionError(f"{path} is not JSON: {error}") from error


def open_tensors(directory: Path) -> TensorSource:
  """The weights of a directory.

  Raises:
    ConversionError: there are none, or they cannot be read safely.
  """
  for name in (WEIGHTS, _INDEX):
    if (directory / name).exists():
      return SafetensorsSource(directory / name)
  if (directory / _TORCH_WEIGHTS).exists():
    return TorchFile(directory / _TORCH_WEIGHTS)
  if (directory / _TORCH_INDEX).exists():
    raise ConversionError(
      f"{directory} holds a pytorch_model.bin in shards; load the model with "
      "transformers and save it again, with safe_serialization=True"
    )
  raise ConversionError(
    f"{directory} holds no {WEIGHTS} and no {_INDEX}; it has "
    f"{', '.join(sorted(p.name for p in directory.iterdir())) or 'no files'}"
  )
