"""Tensors in a directory of Hugging Face, in one file or in shards.

Reading maps them into memory, so an import only needs memory for the parameters
of the new model, not for the files.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.storage.atomic import atomic_file
from realm_jax.weights import WeightsError
from realm_jax.weights.hf_files import JsonFile
from realm_jax.weights.name_maps import Tensors
from realm_jax.weights.unpickling import map_torch_file

WEIGHTS = "model.safetensors"
_DTYPES: Mapping[str, Any] = {
  "F64": np.float64,
  "F32": np.float32,
  "F16": np.float16,
  "BF16": ml_dtypes.bfloat16,
  "I64": np.int64,
  "I32": np.int32,
  "I16": np.int16,
  "I8": np.int8,
  "U8": np.uint8,
  "BOOL": np.bool_,
}


def open_tensors(
  directory: Path, *, optional: bool = False
) -> dict[str, np.ndarray]:
  """Maps the weights of a directory by name, in their own dtypes.

  Without any weights, returns no tensors if they are `optional`.
  """
  for name, mapped in _READERS.items():
    if (path := directory / name).exists():
      return mapped(path)
    if (index := directory / f"{name}.index.json").exists():
      return _open_shards(index, mapped)
  if optional:
    return {}
  names = ", ".join(sorted(p.name for p in directory.iterdir())) or "no files"
  choices = " or ".join(_READERS)
  raise WeightsError(
    f"{directory} holds no {choices}, whole or in shards; it has {names}. Copy "
    "the files of weights, or save the model there with transformers"
  )


def write_tensors(directory: epath.PathLike, tensors: Tensors) -> None:
  """Writes tensors to the file of weights in a directory.

  Raises:
    OSError: The disk is full (`safetensors.numpy.save_file` would raise another
      error), or the file cannot be written.
  """
  # transformers reads no file that does not name its framework.
  content = safetensors.numpy.save(dict(tensors), metadata={"format": "pt"})
  with atomic_file(epath.Path(directory) / WEIGHTS) as path:
    path.write_bytes(content)


def _open_shards(
  index: Path, mapped: Callable[[Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """Maps the tensors of all shards in an index."""
  shard_of = JsonFile(index).get("weight_map", dict[str, str])
  tensors: dict[str, np.ndarray] = {}
  for name in sorted({*shard_of.values()}):
    shard = index.parent / name
    if Path(name).name != name or not shard.is_file():
      raise WeightsError(
        f"{index} names the shard {name!r}, which is not beside it; copy all "
        "files of the model"
      )
    of_shard = mapped(shard).items()
    tensors |= {
      key: t for key, t in of_shard if shard_of.get(key, name) == name
    }
  if lacking := sorted(shard_of.keys() - tensors.keys()):
    raise WeightsError(
      f"{index} promises {len(lacking)} tensors that their shards do not hold, "
      f"such as {lacking[0]} of {shard_of[lacking[0]]}; copy all files of the "
      "model again, from one release"
    )
  return tensors


def _map_safetensors(path: Path) -> dict[str, np.ndarray]:
  try:
    # This checks the header, and whether the tensors fill the file.
    with safetensors.safe_open(path, "numpy"):
      pass
  except (OSError, safetensors.SafetensorError) as error:
    raise WeightsError(
      f"{path} cannot be read ({error}); copy it again"
    ) from error
  data = np.memmap(path, mode="r").view(np.ndarray)
  start = 8 + int.from_bytes(data[:8].tobytes(), "little")
  header = json.loads(data[8:start].tobytes())
  header.pop("__metadata__", None)
  tensors = {}
  for name, entry in header.items():
    if entry["dtype"] not in _DTYPES:
      raise WeightsError(
        f"{name} in {path} has type {entry['dtype']}; want float32, float16 or "
        "bfloat16 (quantized weights must be dequantized first)"
      )
    first, limit = (start + place for place in entry["data_offsets"])
    values = data[first:limit].view(_DTYPES[entry["dtype"]])
    tensors[name] = values.reshape(entry["shape"])
  return tensors


_READERS = {
  WEIGHTS: _map_safetensors,
  "pytorch_model.bin": map_torch_file,
  # Checkpoints of Atlas.
  "model.pth.tar": map_torch_file,
}
