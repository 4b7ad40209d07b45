"""Tensors of a `pytorch_model.bin`, which is a pickle.

torch's weights-only loader reads it, if torch is installed. Its opcodes build
tensors over storages in a zip file, so the filter for byte strings
(`google.pickled_bytes`) does not serve here.
"""

import re
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Shape
from realm_jax.indexes.protocol import Rows

# In earlier versions, a file could trick the weights-only loader into running
# its code (CVE-2025-32434).
_FIRST_SAFE_TORCH = (2, 6)


class TorchFile:
  """Named tensors of one local file, which torch maps into memory if it can."""

  def __init__(self, path: Path):
    self._torch = torch = _import_torch(path)
    try:
      loaded = torch.load(
        path,
        weights_only=True,
        map_location="cpu",
        # Files of torch before 1.6 are bare pickles, which cannot be mapped.
        mmap=zipfile.is_zipfile(path),
      )
    except OSError:
      raise
    except Exception as error:  # A damaged file can raise anything.
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
    self._tensors: Mapping[str, Any] = loaded
    self.shapes: Mapping[str, Shape] = {
      name: tuple(tensor.shape) for name, tensor in loaded.items()
    }

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    tensor = self._tensors[name].detach().contiguous()
    if tensor.dtype == self._torch.bfloat16:
      return tensor.view(self._torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()

  def rows(self, name: str) -> Rows:
    """Returns the tensor itself, which is mapped if the file can be."""
    return self.read(name)


def _import_torch(path: Path) -> ModuleType:
  """Imports torch, if it is installed and its loader can be trusted."""
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
  """Returns shell commands that convert the file."""
  source, target = map(str, (path, path.with_name("model.safetensors")))
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
    f"{shlex.join([source, target])}"
  )


def _reason(error: Exception) -> str:
  """Returns what torch found, without its advice to load unsafely."""
  found = re.search(r"^.*[Uu]nsupported .*$", str(error), re.M)
  if found:
    return found[0].strip()
  return f"{type(error).__name__}: {error}".splitlines()[0][:120]
