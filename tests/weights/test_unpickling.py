"""Arrays come out of pickles, and nothing else: no code of a file is run."""

import collections
import io
import os
import pickle
import struct
import sys
import tracemalloc
import types
import zipfile
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from etils import epath

from realm_jax.weights import WeightsError
from realm_jax.weights.unpickling import map_torch_file, read_byte_strings


def _as_array(records):
  array = np.empty(len(records), object)
  array[:] = records
  return array


def _read(path, pickled: bytes, shape):
  """Reads a .npy file of objects that holds a pickle."""
  header = {"descr": "|O", "fortran_order": False, "shape": shape}
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(pickled)
  return read_byte_strings(epath.Path(path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_back_what_was_put_in(tmp_path, protocol):
  records = [b"", b"a", b"\xff\x00", b"." * 300, b"." * 70_000, b"a"]
  pickled = pickle.dumps(_as_array(records), protocol=protocol)
  # Earlier versions of numpy name its module otherwise.
  earlier = pickled.replace(b"numpy._core", b"numpy.core")
  for written in (pickled, earlier) if protocol == 2 else (pickled,):
    assert _read(tmp_path / "a.npy", written, (len(records),)) == records


class _Call:
  """What is pickled as the call of a function."""

  def __init__(self, function, *arguments):
    self._call = function, arguments

  def __reduce__(self):
    return self._call


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_pickle_that_would_run_a_command_is_refused(tmp_path, protocol):
  marked = tmp_path / "marked"
  malicious = _Call(os.system, f"touch {marked}")
  for value in (malicious, _as_array([b"a", malicious]), {"weight": malicious}):
    pickled = pickle.dumps(value, protocol=protocol)
    with pytest.raises(WeightsError, match="posix"):
      _read(tmp_path / "a.npy", pickled, (2,))
    with pytest.raises(WeightsError, match="posix"):
      map_torch_file(_archive(tmp_path / "a.bin", pickled, {}))
    assert not marked.exists()
    pickle.loads(pickled)  # It does what was feared.
    assert marked.exists()
    marked.unlink()


def test_a_file_that_is_cut_or_holds_anything_else_is_refused(tmp_path):
  whole = pickle.dumps(_as_array([b"a", b"long " * 52, b"", b"c"]))
  for size in range(len(whole)):
    with pytest.raises(WeightsError):
      _read(tmp_path / "a.npy", whole[:size], (4,))
  of_texts = pickle.dumps(_as_array([b"a", "text"]))
  for pickled, size in ((whole + b"x", 4), (whole, 3), (of_texts, 2)):
    with pytest.raises(WeightsError, match="byte strings"):
      _read(tmp_path / "a.npy", pickled, (size,))


# --- torch --------------------------------------------------------------------


def _archive(path, pickled: bytes, storages):
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("model/data.pkl", pickled)
    for key, array in storages.items():
      archive.writestr(f"model/data/{key}", array.tobytes())
  return path


def _rebuild_tensor_v2():
  raise AssertionError("it is named, and not called")


class _Pickler(pickle.Pickler):
  def persistent_id(self, obj):
    if not (isinstance(obj, tuple) and obj[:1] == ("storage",)):
      return None
    return ("storage", getattr(sys.modules["torch"], obj[1]), *obj[2:])


def write_torch_file(path, tensors, storages, **beside):
  """Writes a state_dict as torch does: tensors over storages in an archive.

  With what is `beside` it, it is the `model` of a checkpoint.
  """
  torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
  for kind in ("FloatStorage", "BFloat16Storage"):
    setattr(torch, kind, type(kind, (), {"__module__": "torch"}))
  _rebuild_tensor_v2.__module__ = "torch._utils"
  utils._rebuild_tensor_v2 = _rebuild_tensor_v2
  state = collections.OrderedDict()
  for name, (kind, key, offset, size, stride) in tensors.items():
    storage = ("storage", kind, key, "cpu", 9)
    hooks = collections.OrderedDict()
    state[name] = _Call(
      _rebuild_tensor_v2, storage, offset, size, stride, False, hooks
    )
  file = io.BytesIO()
  with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
    _Pickler(file, protocol=2).dump(
      {"model": state, **beside} if beside else state
    )
  return _archive(path, file.getvalue(), storages)


def test_tensors_are_read_in_their_own_dtype_and_place(tmp_path):
  single = np.arange(9, dtype=np.float32)
  half = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
  tensors = map_torch_file(
    write_torch_file(
      tmp_path / "a.bin",
      {
        "a": ("FloatStorage", "0", 1, (2, 3), (3, 1)),
        "transposed": ("FloatStorage", "0", 0, (2, 3), (1, 2)),
        "b": ("BFloat16Storage", "1", 0, (3,), (1,)),
      },
      {"0": single, "1": half},
    )
  )
  np.testing.assert_array_equal(tensors["a"], single[1:7].reshape(2, 3))
  transposed = single[:6].reshape(3, 2).T
  np.testing.assert_array_equal(tensors["transposed"], transposed)
  np.testing.assert_array_equal(tensors["b"], half)
  assert tensors["b"].dtype == ml_dtypes.bfloat16
  for place in (5, (2, 3), (3, 1)), (0, (1 << 40,), (0,)):
    beyond = {"a": ("FloatStorage", "0", *place)}
    write_torch_file(tmp_path / "a.bin", beyond, {"0": single})
    with pytest.raises(WeightsError, match="beyond its storage"):
      map_torch_file(tmp_path / "a.bin")


def _claim(path, size):
  """Lets the directory of an archive claim a size of its last entry."""
  content = bytearray(path.read_bytes())
  entry = content.rindex(b"PK\1\2")
  content[entry + 20 : entry + 28] = struct.pack("<II", size, size)
  path.write_bytes(content)


def test_no_memory_is_taken_for_what_a_file_claims(tmp_path):
  path = tmp_path / "a.bin"
  tensors = {"a": ("FloatStorage", "0", 0, (4,), (1,))}
  storages = {"0": np.arange(4, dtype=np.float32)}
  write_torch_file(path, tensors, storages)
  tracemalloc.start()
  for size, word in ((1 << 31, "larger than the file"), (12, "damaged|magic")):
    _claim(path, size)
    with pytest.raises(WeightsError, match=word):
      map_torch_file(path)
  # A bomb: 128 megabytes in one tenth of a megabyte.
  write_torch_file(path, tensors, storages)
  with (
    zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
    archive.open("model/data/1", "w") as file,
  ):
    for _ in range(8):
      file.write(bytes(1 << 24))
  with pytest.raises(WeightsError, match="compressed"):
    map_torch_file(path)
  # A pickle that claims to have put two billion objects aside.
  memo = b"\x80\x02Nr\xff\xff\xff\x7f."
  with pytest.raises(WeightsError):
    map_torch_file(_archive(path, memo, {}))
  with pytest.raises(WeightsError):
    _read(tmp_path / "a.npy", memo, (1,))
  assert tracemalloc.get_traced_memory()[1] < 1 << 26
  tracemalloc.stop()
