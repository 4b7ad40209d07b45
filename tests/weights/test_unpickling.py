"""Arrays come out of pickles, and nothing else: no code of a file is run."""

import collections
import io
import os
import pickle
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest
from etils import epath

from realm_jax.weights import WeightsError
from realm_jax.weights.unpickling import read_byte_strings, read_torch_file


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

  def __init__(self, function, *given):
    self._call = function, given

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
      read_torch_file(_archive(tmp_path / "a.bin", pickled, {}))
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


@pytest.fixture
def save(tmp_path, monkeypatch):
  """Writes a state_dict as torch does: tensors over storages in an archive."""
  torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
  for kind in ("FloatStorage", "BFloat16Storage"):
    setattr(torch, kind, type(kind, (), {"__module__": "torch"}))

  def _rebuild_tensor_v2():
    raise AssertionError("it is named, and not called")

  _rebuild_tensor_v2.__module__ = "torch._utils"
  _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
  utils._rebuild_tensor_v2 = _rebuild_tensor_v2
  monkeypatch.setitem(sys.modules, "torch", torch)
  monkeypatch.setitem(sys.modules, "torch._utils", utils)

  class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
      if not (isinstance(obj, tuple) and obj[:1] == ("storage",)):
        return None
      return ("storage", getattr(torch, obj[1]), *obj[2:])

  def write(tensors, storages):
    made = collections.OrderedDict()
    for name, (kind, key, offset, size, stride) in tensors.items():
      storage = ("storage", kind, key, "cpu", 9)
      hooks = collections.OrderedDict()
      made[name] = _Call(
        _rebuild_tensor_v2, storage, offset, size, stride, False, hooks
      )
    file = io.BytesIO()
    Pickler(file, protocol=2).dump(made)
    return _archive(tmp_path / "a.bin", file.getvalue(), storages)

  return write


def test_tensors_are_read_in_their_own_dtype_and_place(save):
  single = np.arange(9, dtype=np.float32)
  half = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
  tensors = read_torch_file(
    save(
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
  beyond = save({"a": ("FloatStorage", "0", 5, (2, 3), (3, 1))}, {"0": single})
  with pytest.raises(WeightsError, match="beyond its storage"):
    read_torch_file(beyond)
