"""A model's directory as Hugging Face's `save_pretrained` writes it."""

from pathlib import Path

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
  """Raises `ConversionError` if there is no such directory."""
  if not directory.is_dir():
    raise ConversionError(
      f"{directory} is no local directory; want one with {CONFIG}, {WEIGHTS} "
      "and vocab.txt"
    )


def open_tensors(directory: Path) -> TensorSource:
  """Opens the weights of a directory.

  Raises:
    ConversionError: If there are none, or they cannot be read safely.
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
