"""Models and arrays on torch's side: at random, as inputs, saved."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.random_inputs import PAD_ID, RandomInputs, Tokens, padded

EXPECTED = "expected.npz"


def randomize(model: torch.nn.Module) -> Any:
  """Draws every parameter, biases and norms included, so that each counts.

  Products keep the size of what they multiply, whatever the width. Returns
  the model, without dropout.
  """
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if "norm" in name.lower() and name.endswith("weight"):
        parameter.normal_(1.0, 0.1)
        if name.endswith("cls.LayerNorm.weight"):
          # Of a projection. Products of its vectors then differ by about one
          # from block to block, and each block has a share of the gradient.
          parameter *= math.sqrt(16 / len(parameter))
      elif parameter.ndim == 1:
        parameter.normal_(0.0, 0.1)
      else:
        parameter.normal_(0.0, 0.9 / math.sqrt(parameter.shape[-1]))
  return model.eval()


def as_inputs(
  inputs: RandomInputs, rows: list[Tokens], length: int
) -> dict[str, torch.Tensor]:
  """Rows of ids as BERT takes them: ids, mask and token types, [n, length]."""
  ids = padded(rows, length)
  types = padded([inputs.types(tokens) for tokens in rows], length)
  return {
    "input_ids": torch.from_numpy(ids),
    "attention_mask": torch.from_numpy((ids != PAD_ID).astype(np.int64)),
    "token_type_ids": torch.from_numpy(types),
  }


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
  """The gradient of each parameter that took part, by its name in the file."""
  return {
    f"gradient/{name}": parameter.grad
    for name, parameter in model.named_parameters()
    if parameter.grad is not None
  }


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
  """Writes an `.npz`; tensors and numbers become arrays."""
  path.parent.mkdir(parents=True, exist_ok=True)
  plain: dict[str, Any] = {
    name: value.detach().numpy()
    if isinstance(value, torch.Tensor)
    else np.asarray(value)
    for name, value in arrays.items()
  }
  # Not compressed: what is random stays as large, and takes minutes.
  np.savez(path, **plain)
