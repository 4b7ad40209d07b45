"""Where torch is missing or too old, a pickle of weights says what to do."""

import shlex
import sys
import types

import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.torch_file import TorchFile


def test_without_torch_the_error_is_what_to_paste(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  folder = tmp_path / "a model"
  with pytest.raises(ConversionError, match="torch is not installed") as error:
    TorchFile(folder / "pytorch_model.bin")
  explained, *commands = str(error.value).splitlines()
  assert explained.startswith(f"{folder}/pytorch_model.bin is a pickle")
  words = [shlex.split(command) for command in commands]
  assert words[0] == ["python", "-m", "venv", "torch_env"]
  assert words[1][:2] == ["torch_env/bin/pip", "install"]
  python, flag, program, source, target = words[2]
  assert (python, flag) == ("torch_env/bin/python", "-c")
  assert "weights_only=True" in program
  compile(program, "the command", "exec")
  assert source == f"{folder}/pytorch_model.bin"
  assert target == f"{folder}/model.safetensors"


@pytest.mark.parametrize("version", ["1.13.1+cu117", "2.5.1", "2.5.1+cpu"])
def test_a_torch_whose_loader_can_be_tricked_is_not_used(
  tmp_path, monkeypatch, version
):
  old = types.ModuleType("torch")
  old.__version__ = version
  monkeypatch.setitem(sys.modules, "torch", old)
  with pytest.raises(ConversionError, match=r"install torch 2\.6 or later"):
    TorchFile(tmp_path / "pytorch_model.bin")
