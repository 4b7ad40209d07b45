"""Tensors of a `pytorch_model.bin`, which is a pickle.

It is read by torch's weights-only loader or not at all.
"""

import re
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.indexes.protocol import Rows

# Before it, a file could get past the weights-only loader (CVE-2025-32434).
_FIRST_SAFE_TORCH = (2, 6)


class TorchFile:
  """Named tensors of one file, which torch maps into memory where it can.

  Args:
    path: a local `pytorch_model.bin`.

  Raises:
    ConversionError: torch is not installed, or the file holds anything but
      named tensors.
  """

  def __init__(self, path: str | Path):
    self._path = Path(path)
    self._torch = _torch(self._path)
    self._tensors = self._load()
    self._shapes = {
      name: tuple(tensor.shape) for name, tensor in self._tensors.items()
    }

  def _load(self) -> Mapping[str, Any]:
    torch, path = self._torch, self._path
    try:
      loaded = torch.load(
        path,
        weights_only=True,
        map_location="cpu",
        # Files of before torch 1.6 are bare pickles, which cannot be mapped.
        mmap=zipfile.is_zipfile(path),
      )
    except OSError:
      raise
    except Exception as error:  # Of a damaged file, whatever its bytes lead to.
      raise ConversionError(
        f"{path} is not read: torch's weights-only loader refuses it "
        f"({_reason(error)}); want a file that torch.save wrote of a model's "
        "state_dict()"
      ) from error
    if not isinstance(loaded, Mapping):
      raise ConversionError(
        f"{path} holds {type(loaded).__name__}; want a state_dict, tensors by "
        "name"
      )
    for name, value in loaded.items():
      if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise ConversionError(
          f"{path} holds {type(value).__name__} under {name!r}; want a "
          "state_dict of tensors alone: save the model's state_dict() by "
          "itself"
        )
    return loaded

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor, by name."""
    return self._shapes

  def read(self, name: str) -> np.ndarray:
    """One tensor in its stored dtype (bfloat16 is that of ml_dtypes)."""
    tensor = self._tensors[name].detach().contiguous()
    if tensor.dtype == self._torch.bfloat16:
      return tensor.view(self._torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()

  def rows(self, name: str) -> Rows:
    """One tensor to be read in slices; the file is mapped where it can be."""
    return self.read(name)


def _torch(path: Path) -> Any:
  """The library, where it is installed and its loader can be trusted."""
  try:
    import torch
  except ImportError as error:
    raise ConversionError(
      f"{path} is a pickle, which only torch can read safely, and torch is "
      "not installed here. Write model.safetensors beside it, in an "
      f"environment of its own, and import again:\n{_commands(path)}"
    ) from error
  version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
  if version < _FIRST_SAFE_TORCH:
    raise ConversionError(
      f"torch {torch.__version__} is installed, whose weights-only loader can "
      f"be tricked into running a file's code; install torch "
      f"{'.'.join(map(str, _FIRST_SAFE_TORCH))} or later to read {path}"
    )
  return torch


def _commands(path: Path) -> str:
  """What a user can paste to convert the file."""
  target = path.with_name("model.safetensors")
  program = (
    "import sys, torch, safetensors.torch; "
    "weights = torch.load(sys.argv[1], weights_only=True, map_location='cpu'); "
    "safetensors.torch.save_file({name: tensor.contiguous().clone() "
    "for name, tensor in weights.items()}, sys.argv[2])"
  )
  return (
    "  python -m venv torch_env\n"
    "  torch_env/bin/pip install 'torch>=2.6' safetensors numpy\n"
    f'  torch_env/bin/python -c "{program}" '
    f"{shlex.quote(str(path))} {shlex.quote(str(target))}"
  )


def _reason(error: Exception) -> str:
  """What torch found; without its advice, which is to load unsafely."""
  found = re.search(r"^.*(?:unsupported|Unsupported) .*$", str(error), re.M)
  if found:
    return found[0].strip()
  return f"{type(error).__name__}: {error}".splitlines()[0][:120]
