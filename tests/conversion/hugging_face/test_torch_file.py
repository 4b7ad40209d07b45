"""A pickle of weights is read by torch that can be trusted, or not at all."""

import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.torch_file import TorchFile


@pytest.mark.parametrize("version", ["1.13.1+cu117", "2.5.1", "2.5.1+cpu"])
def test_a_torch_whose_loader_can_be_tricked_is_not_used(
  tmp_path, monkeypatch, version
):
  old = types.ModuleType("torch")
  old.__version__ = version
  monkeypatch.setitem(sys.modules, "torch", old)
  with pytest.raises(ConversionError, match=r"install torch 2\.6 or later"):
    TorchFile(tmp_path / "pytorch_model.bin")


class _Tensor:
  """As much of torch's as is used, over an array; bfloat16 by its bits."""

  def __init__(self, array, dtype=None):
    self._array = array
    self.shape = array.shape
    self.dtype = dtype or array.dtype.name

  def detach(self):
    return self

  def contiguous(self):
    return self

  def view(self, dtype):
    return _Tensor(self._array, dtype)

  def numpy(self):
    if self.dtype == "bfloat16":
      raise TypeError("Got unsupported ScalarType BFloat16")
    return self._array


class _Torch(types.ModuleType):
  """A torch whose `load` gives, or raises, what a test wants."""

  __version__ = "2.6.0+cpu"
  Tensor, bfloat16, int16 = _Tensor, "bfloat16", "int16"

  def __init__(self, loaded):
    super().__init__("torch")
    self._loaded, self.calls = loaded, []

  def load(self, path, **how):
    self.calls.append((path, how))
    if isinstance(self._loaded, Exception):
      raise self._loaded
    return self._loaded


@pytest.fixture
def load(tmp_path, monkeypatch):
  """Opens a file of which torch makes the value given."""

  def opened(loaded):
    torch = _Torch(loaded)
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = tmp_path / "pytorch_model.bin"
    if not path.exists():
      path.write_bytes(b"")
    return TorchFile(path), torch

  return opened


def test_tensors_are_read_in_their_own_dtype(load):
  single = np.arange(6, dtype=np.float32).reshape(2, 3)
  half = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
  file, _ = load(
    {"a": _Tensor(single), "b": _Tensor(half.view(np.int16), "bfloat16")}
  )
  assert file.shapes == {"a": (2, 3), "b": (3,)}
  np.testing.assert_array_equal(file.read("a"), single)
  assert file.read("b").dtype == ml_dtypes.bfloat16
  np.testing.assert_array_equal(file.read("b"), half)
  np.testing.assert_array_equal(file.rows("a")[1:], single[1:])


def test_no_code_of_a_file_is_run_and_archives_are_mapped(load, tmp_path):
  _, torch = load({})
  assert torch.calls[0][1]["weights_only"] is True
  assert torch.calls[0][1]["mmap"] is False
  with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
    archive.writestr("data.pkl", b"")
  _, torch = load({})
  assert torch.calls[0][1]["weights_only"] is True
  assert torch.calls[0][1]["mmap"] is True


@pytest.mark.parametrize(
  ("loaded", "said"),
  [
    ([1], "holds list; want a state_dict"),
    ({"epoch": 3}, "holds int under 'epoch'; want a state_dict"),
    ({7: _Tensor(np.ones(1))}, "holds _Tensor under 7; want a state_dict"),
    (EOFError("Ran out of input"), "refuses it .EOFError: Ran out of input"),
    (
      ValueError("Weights only load failed.\nUnsupported global: os.system \n"),
      r"refuses it \(Unsupported global: os\.system\)",
    ),
  ],
)
def test_what_is_no_state_dict_is_refused(load, loaded, said):
  with pytest.raises(ConversionError, match=said):
    load(loaded)
