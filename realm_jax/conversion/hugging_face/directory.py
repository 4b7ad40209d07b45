"""A model's directory as Hugging Face's `save_pretrained` writes it."""

import json
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
from realm_jax.conversion.hugging_face.torch_file import TorchFile
from realm_jax.conversion.mapping import Shape, TensorSource
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TORCH_WEIGHTS = "pytorch_model.bin"
_TORCH_INDEX = "pytorch_model.bin.index.json"
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
  """Named tensors of a `.safetensors` file, or of the shards of an index."""

  def __init__(self, path: Path):
    is_index = path.name.endswith(".json")
    shard_of = _read_index(path) if is_index else {}
    self._files = {}
    shapes: dict[str, Shape] = {}
    for shard in sorted(set(shard_of.values())) or [path]:
      try:
        file = safetensors.safe_open(shard, framework="numpy")
        for name in file.keys():  # noqa: SIM118
          self._files[name] = file, shard
          shapes[name] = tuple(file.get_slice(name).get_shape())
      except (OSError, safetensors.SafetensorError) as error:
        raise ConversionError(
          f"{shard} cannot be read ({error}); copy it again"
        ) from error
    self.shapes: Mapping[str, Shape] = shapes
    if missing := sorted(shard_of.keys() - shapes.keys()):
      raise ConversionError(
        f"{path} names {len(missing)} tensors that its shards do not hold, the "
        f"first {missing[0]}; copy the shards again"
      )

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    file, shard = self._files[name]
    try:
      return file.get_tensor(name)
    except (TypeError, AttributeError, KeyError) as error:
      stored = file.get_slice(name).get_dtype()
      raise ConversionError(
        f"{name} of {shard} holds {stored}, which numpy does not have; want "
        "F32, F16 or BF16"
      ) from error

  def rows(self, name: str) -> Rows:
    """Returns a tensor whose slices are read from the disk."""
    return _Rows(self._files[name][0].get_slice(name), name=name)


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


def _read_index(index: Path) -> dict[str, Path]:
  """Reads the shard of each tensor."""
  try:
    found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    shard_of = {str(name): str(file) for name, file in found.items()}
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise ConversionError(
      f"{index} cannot be read as an index of shards, "
      f'{{"weight_map": {{TENSOR: FILE}}}}: {error}'
    ) from error
  names = sorted(set(shard_of.values()))
  for name in names:
    if Path(name).name != name:
      raise ConversionError(
        f"{index} names the shard {name!r}; want files in its own folder"
      )
  if missing := [name for name in names if not (index.parent / name).exists()]:
    raise ConversionError(
      f"{index} names shards that are not beside it: {', '.join(missing)}; "
      "copy them too"
    )
  return {name: index.parent / file for name, file in shard_of.items()}
