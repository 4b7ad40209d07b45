"""Reads arrays from pickles of other systems without running their code.

A pickle is a program that may call anything. Here it can only use the names
that arrays and tensors need. Each of them stands for a simple function in this
file; functions of numpy and torch are not called. The sizes that a file claims
are compared with the file's size before memory is allocated.
"""

import collections
import math
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath
from jaxtyping import UInt8

from realm_jax.errors import RealmError
from realm_jax.weights import WeightsError

# Types of elements, by torch's class of storage.
_STORAGES: Mapping[str, Any] = {
  "FloatStorage": np.float32,
  "HalfStorage": np.float16,
  "BFloat16Storage": ml_dtypes.bfloat16,
  "DoubleStorage": np.float64,
  "LongStorage": np.int64,
  "IntStorage": np.int32,
  "BoolStorage": np.bool_,
}


class _Object(list[Any]):
  """The state of an array of objects, or of its type."""

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    self[:] = state


class _Options(dict[str, Any]):
  """Options of a command, as a dictionary."""

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.update(state)


_NAMES: Mapping[str, Any] = {
  "argparse.Namespace": _Options,
  "torch.device": lambda *arguments: arguments,
  "numpy.core.multiarray._reconstruct": lambda *_: _Object(),
  "numpy._core.multiarray._reconstruct": lambda *_: _Object(),
  "numpy.ndarray": None,
  "numpy.dtype": lambda *_: _Object(),
  # Protocol 2 stores bytes as text.
  "_codecs.encode": lambda text, _: text.encode("latin1"),
  "__builtin__.bytes": lambda: b"",
  "builtins.bytes": lambda: b"",
  "collections.OrderedDict": collections.OrderedDict,
  # Storage, offset, size and stride, in elements.
  "torch._utils._rebuild_tensor_v2": lambda *arguments: arguments[:4],
  "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
  **{f"torch.{kind}": kind for kind in _STORAGES},
}


class _Unpickler(pickle._Unpickler):
  """Python's unpickler, which only allocates memory for contents of the file.

  The unpickler in C allocates as much as a number in the file says.
  """

  def find_class(self, module: str, name: str) -> Any:
    """Returns the substitute for a name, without importing anything."""
    if f"{module}.{name}" not in _NAMES:
      raise RealmError(f"it names {module}.{name}")
    return _NAMES[f"{module}.{name}"]

  def persistent_load(self, pid: Any) -> Any:
    """Returns a storage of torch, with its class, name in the file and size."""
    return pid


def read_byte_strings(path: epath.Path) -> list[bytes]:
  """Reads an array of byte strings that `np.save` has pickled."""
  try:
    with path.open("rb") as file:
      np.lib.format.read_magic(file)
      shape, _, _ = np.lib.format.read_array_header_1_0(file)
      *_, records = _Unpickler(file).load()
      rest = file.read(1)
    if {*map(type, records)} - {bytes} or (len(records),) != shape or rest:
      raise RealmError("it holds something else")
    return records
  except Exception as error:  # A damaged file can raise anything.
    raise WeightsError(
      f"{path} cannot be read ({error!r}); want an array of byte strings. No "
      "code in it was run"
    ) from error


def map_torch_file(path: Path) -> dict[str, np.ndarray]:
  """Maps the tensors of a `pytorch_model.bin` by name, in its own dtypes.

  If a checkpoint has more than a model, they are below `model`.
  """
  try:
    with zipfile.ZipFile(path) as file:
      entries = {entry.filename: entry for entry in file.infolist()}
      if any(
        e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size
        for e in entries.values()
      ):
        raise RealmError("its parts are compressed, which torch never does")
      size = path.stat().st_size
      if sum(e.file_size for e in entries.values()) > size:
        raise RealmError(f"its parts are larger than the file, {size:,} bytes")
      if damaged := file.testzip():
        raise RealmError(f"{damaged} is damaged")
      (pickled,) = (n for n in entries if n.count("/") == 1 and "data.pkl" in n)
      with file.open(pickled) as content:
        tensors = _Unpickler(content).load()
    tensors = tensors.get("model", tensors)
    folder = pickled.replace("data.pkl", "data")
    data = np.memmap(path, mode="r").view(np.ndarray)
    return {
      str(name): _view(
        _content(data, entries[f"{folder}/{tensor[0][2]}"]), *tensor
      )
      for name, tensor in tensors.items()
    }
  except Exception as error:
    raise WeightsError(
      f"{path} cannot be read ({error!r}); want tensors by name, from a "
      "state_dict() that torch 1.6 or later saved. No code in it was run"
    ) from error


def _content(
  data: UInt8[np.ndarray, " n"], entry: zipfile.ZipInfo
) -> UInt8[np.ndarray, " m"]:
  """Returns the bytes of an uncompressed entry in a zip file."""
  # Their header ends with a name and extra fields, which have these lengths.
  place = entry.header_offset + 26
  start = place + 4 + int(data[place : place + 4].view("<u2").sum())
  return data[start : start + entry.file_size]


def _view(
  data: UInt8[np.ndarray, " n"],
  storage: tuple[Any, ...],
  offset: int,
  size: tuple[int, ...],
  stride: tuple[int, ...],
) -> np.ndarray:
  values = data.view(_STORAGES[storage[1]])[offset:]
  last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
  is_beyond = 0 not in size and last >= len(values)
  # With a stride of 0, a few bytes could be a tensor of any size.
  is_beyond |= math.prod(size) > len(values)
  if min((offset, *stride, *size)) < 0 or is_beyond:
    raise RealmError("a tensor lies beyond its storage")
  steps = [step * values.itemsize for step in stride]
  return np.lib.stride_tricks.as_strided(values, size, steps, writeable=False)
