"""Tensors of a `.safetensors` file, or of shards with an index."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.tensors import Shape
from realm_jax.indexes.protocol import Rows

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class SafetensorsSource:
  """Named tensors of one or several files, mapped into memory.

  Args:
    path: `.safetensors` file, or the `.safetensors.index.json` of shards in
      the same directory.

  Raises:
    ConversionError: If a file is missing, damaged, or lacks tensors that the
      index names.
  """

  def __init__(self, path: Path):
    shards = _shards(path) if path.name.endswith(".json") else [path]
    self._files = {}
    self._shapes: dict[str, Shape] = {}
    for shard in shards:
      try:
        file = safetensors.safe_open(shard, framework="numpy")
        for name in file.keys():  # noqa: SIM118
          self._files[name] = file, shard
          self._shapes[name] = tuple(file.get_slice(name).get_shape())
      except (OSError, safetensors.SafetensorError) as error:
        raise ConversionError(
          f"{shard} cannot be read ({error}); copy it again"
        ) from error
    if path not in shards:
      _require_all(path, self._shapes)

  @property
  def shapes(self) -> Mapping[str, Shape]:
    """The shape of every tensor, by name."""
    return self._shapes

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


def _weight_map(index: Path) -> dict[str, str]:
  try:
    found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {str(name): str(file) for name, file in found.items()}
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise ConversionError(
      f"{index} cannot be read as an index of shards, "
      f'{{"weight_map": {{TENSOR: FILE}}}}: {error}'
    ) from error


def _shards(index: Path) -> list[Path]:
  names = sorted(set(_weight_map(index).values()))
  for name in names:
    if Path(name).name != name:
      raise ConversionError(
        f"{index} names the shard {name!r}; want files in its own folder"
      )
  paths = [index.parent / name for name in names]
  if missing := [path.name for path in paths if not path.exists()]:
    raise ConversionError(
      f"{index} names shards that are not beside it: {', '.join(missing)}; "
      "copy them too"
    )
  return paths


def _require_all(index: Path, shapes: Mapping[str, Shape]) -> None:
  missing = sorted(_weight_map(index).keys() - shapes.keys())
  if missing:
    raise ConversionError(
      f"{index} names {len(missing)} tensors that its shards do not hold, the "
      f"first {missing[0]}; copy the shards again"
    )
