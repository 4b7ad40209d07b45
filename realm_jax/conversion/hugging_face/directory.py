"""A model's directory as Hugging Face's `save_pretrained` writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from realm_jax.conversion.config_file import ConfigFile, read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.config import (
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.hugging_face.tokenizer import read_vocabulary
from realm_jax.conversion.mapping import Shape, TensorSource
from realm_jax.conversion.pickles import TorchFile
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_TORCH_WEIGHTS = "pytorch_model.bin"
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class OpenedModel(NamedTuple):
  """The encoder's configuration, the vocabulary and the weights of a model."""

  encoder: BertConfig
  pieces: tuple[str, ...]
  tensors: TensorSource


def read_model_config(directory: Path) -> ConfigFile:
  """Reads config.json; raises `ConversionError` without such a directory."""
  if not directory.is_dir():
    raise ConversionError(
      f"{directory} is no local directory; want one with {CONFIG}, {WEIGHTS} "
      "and vocab.txt"
    )
  return read_config_file(directory / CONFIG)


def open_model(
  directory: Path, config: ConfigFile, *, default_activation: str = "gelu"
) -> OpenedModel:
  """Opens a model whose configuration has been read."""
  encoder = read_bert_config(config, default_activation=default_activation)
  pieces = read_vocabulary(directory)
  require_vocabulary_size(config, len(pieces))
  return OpenedModel(encoder, pieces, open_tensors(directory))


def open_tensors(directory: Path) -> TensorSource:
  """Opens the weights of a directory; raises `ConversionError` without any."""
  if (directory / WEIGHTS).exists():
    return SafetensorsSource(directory / WEIGHTS)
  if (directory / _TORCH_WEIGHTS).exists():
    return TorchFile(directory / _TORCH_WEIGHTS)
  for name in (WEIGHTS, _TORCH_WEIGHTS):
    if (directory / f"{name}.index.json").exists():
      raise ConversionError(
        f"{directory} holds weights in shards; load the model with "
        "transformers and save it again, with safe_serialization=True and "
        'max_shard_size="20GB"'
      )
  raise ConversionError(
    f"{directory} holds no {WEIGHTS}; it has "
    f"{', '.join(sorted(p.name for p in directory.iterdir())) or 'no files'}"
  )


class FolderTensors:
  """Named tensors of a directory and of folders in it.

  The name of a folder and a dot are before the names of its tensors.
  """

  def __init__(self, root: TensorSource, folders: Mapping[str, TensorSource]):
    self._places = {name: (root, name) for name in root.shapes}
    for folder, source in folders.items():
      for name in source.shapes:
        self._places[f"{folder}.{name}"] = source, name
    self.shapes: Mapping[str, Shape] = {
      name: source.shapes[theirs]
      for name, (source, theirs) in self._places.items()
    }

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    source, theirs = self._places[name]
    return source.read(theirs)

  def rows(self, name: str) -> Rows:
    """Returns a tensor whose slices are read from the disk."""
    source, theirs = self._places[name]
    return source.rows(theirs)


class SafetensorsSource:
  """Named tensors of a `.safetensors` file."""

  def __init__(self, path: Path):
    self._path = path
    try:
      self._file = safetensors.safe_open(path, framework="numpy")
      self.shapes: Mapping[str, Shape] = {
        name: tuple(self._file.get_slice(name).get_shape())
        for name in self._file.keys()  # noqa: SIM118
      }
    except (OSError, safetensors.SafetensorError) as error:
      raise ConversionError(
        f"{path} cannot be read ({error}); copy it again"
      ) from error

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    try:
      return self._file.get_tensor(name)
    except (TypeError, AttributeError, KeyError) as error:
      stored = self._file.get_slice(name).get_dtype()
      raise ConversionError(
        f"{name} of {self._path} holds {stored}, which numpy does not have; "
        "want F32, F16 or BF16"
      ) from error

  def rows(self, name: str) -> Rows:
    """Returns a tensor whose slices are read from the disk."""
    return _Rows(self._file.get_slice(name), name=name)


class _Rows:
  """A tensor whose slices are read from its file."""

  def __init__(self, tensor: Any, *, name: str):
    stored = tensor.get_dtype()
    if stored not in _DTYPES:
      raise ConversionError(
        f"{name} holds {stored}; want one of {', '.join(_DTYPES)}"
      )
    self.shape = tuple(tensor.get_shape())
    self.dtype = np.dtype(_DTYPES[stored])
    self._tensor = tensor

  def __getitem__(self, rows: slice) -> np.ndarray:
    # The library refuses a slice that ends beyond the last row.
    start, stop, _ = rows.indices(self.shape[0])
    return self._tensor[start:stop]
