"""Arrays from pickles that other systems wrote, of which nothing is run.

A pickle is a program that may call anything. Here it finds the names that an
array or a tensor is made of and no others, and each stands for a plain function
of this file: neither numpy's nor torch's own are called.
"""

import collections
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np
from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Shape
from realm_jax.indexes.protocol import Rows

_WANTED_BYTES = (
  "want what np.save writes of an array of dtype object, of one dimension, "
  "that holds byte strings and nothing else"
)
_WANTED_TENSORS = (
  "want a file that torch 1.6 or later wrote by torch.save of a model's "
  "state_dict(), tensors by name"
)
# Storages of torch, and the types of their elements.
_STORAGES: Mapping[str, Any] = {
  "FloatStorage": np.float32,
  "HalfStorage": np.float16,
  "BFloat16Storage": ml_dtypes.bfloat16,
  "DoubleStorage": np.float64,
  "LongStorage": np.int64,
  "IntStorage": np.int32,
  "BoolStorage": np.bool_,
}


def read_byte_strings(path: epath.Path) -> list[bytes]:
  """Reads an array of byte strings that np.save has pickled.

  Raises:
    ConversionError: The file is damaged, or holds anything else.
  """
  with path.open("rb") as file:
    try:
      version = np.lib.format.read_magic(file)
      read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
      }[version]
      shape, _, dtype = read_header(file)
      is_pickled = dtype.kind == "O"
      array = _Unpickler(file, _OF_NUMPY).load() if is_pickled else None
      after = file.read(1)
    except OSError:
      raise
    except Exception as error:  # A damaged file can raise anything.
      raise _refused(path, error, _WANTED_BYTES) from error
  records = array.items if isinstance(array, _ObjectArray) else None
  if (
    not isinstance(records, list)
    or {*map(type, records)} - {bytes}
    or (len(records),) != shape
    or after
  ):
    raise _refused(path, None, _WANTED_BYTES)
  return records


class TorchFile:
  """Named tensors of a `pytorch_model.bin`, each read when it is asked for."""

  def __init__(self, path: Path):
    self._path = path
    try:
      self._zip = zipfile.ZipFile(path)
      names = self._zip.namelist()
      (pickled,) = (n for n in names if n.count("/") == 1 and "data.pkl" in n)
      self._folder = pickled.partition("/")[0]
      with self._zip.open(pickled) as file:
        loaded = _Unpickler(file, _OF_TORCH).load()
      self._tensors = {str(k): _Tensor(*v) for k, v in loaded.items()}
      self.shapes: Mapping[str, Shape] = {
        name: tuple(map(int, tensor.size))
        for name, tensor in self._tensors.items()
      }
    except OSError:
      raise
    except Exception as error:  # A damaged file can raise anything.
      raise _refused(path, error, _WANTED_TENSORS) from error

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    try:
      (_, kind, key, *_), offset, size, stride = self._tensors[name]
      data = self._zip.read(f"{self._folder}/data/{key}")
      values = np.frombuffer(data, _STORAGES[kind])[offset:]
      last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
      if min((offset, *stride, *size)) < 0 or last >= len(values) > 0:
        raise ValueError(f"{name} lies beyond its storage")
      steps = [step * values.itemsize for step in stride]
      return np.lib.stride_tricks.as_strided(values, size, steps).copy()
    except Exception as error:
      raise _refused(self._path, error, _WANTED_TENSORS) from error

  def rows(self, name: str) -> Rows:
    """Returns the tensor itself, which is read into memory."""
    return self.read(name)


class _ObjectArray:
  """What an array of objects is unpickled to."""

  items: Any = None

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    *_, self.items = state


class _Dtype:
  """The type of an array of objects, which its header has said already."""

  def __init__(self, *_: Any): ...

  def __setstate__(self, state: Any) -> None: ...


class _Tensor(NamedTuple):
  """A tensor: its storage and place, in elements."""

  storage: tuple[Any, ...]
  offset: int
  size: tuple[int, ...]
  stride: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
  """Unpickles by the names of one kind of file."""

  def __init__(self, file: IO[bytes], names: Mapping[str, Any]):
    super().__init__(file)
    self._names = names

  def find_class(self, module: str, name: str) -> Any:
    """Returns what stands for a name; nothing is imported."""
    if f"{module}.{name}" not in self._names:
      raise ValueError(f"it names {module}.{name}")
    return self._names[f"{module}.{name}"]

  def persistent_load(self, pid: Any) -> Any:
    """Returns a storage of torch: its kind, its name in the file, its size."""
    return pid


def _encoded(text: str, encoding: str) -> bytes:
  """Returns bytes, as protocol 2 writes them."""
  if encoding != "latin1":
    raise ValueError(f"a text in {encoding}")
  return text.encode(encoding)


_OF_NUMPY: Mapping[str, Any] = {
  "numpy.core.multiarray._reconstruct": lambda *_: _ObjectArray(),
  "numpy._core.multiarray._reconstruct": lambda *_: _ObjectArray(),
  "numpy.ndarray": None,
  "numpy.dtype": _Dtype,
  "_codecs.encode": _encoded,
  "__builtin__.bytes": lambda: b"",
  "builtins.bytes": lambda: b"",
}
_OF_TORCH: Mapping[str, Any] = {
  "collections.OrderedDict": collections.OrderedDict,
  "torch._utils._rebuild_tensor_v2": lambda *given: _Tensor(*given[:4]),
  "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
  **{f"torch.{kind}": kind for kind in _STORAGES},
}


def _refused(
  path: epath.PathLike, error: Exception | None, wanted: str
) -> ConversionError:
  reason = "" if error is None else f" ({type(error).__name__}: {error})"
  return ConversionError(
    f"{path} is not read{reason}; {wanted}. Nothing of it was run"
  )
