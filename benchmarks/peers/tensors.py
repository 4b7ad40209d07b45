"""Random parameters, inputs, gradients and files of torch's models."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.random_inputs import PAD_ID, RandomInputs, Tokens, padded

EXPECTED = "expected.npz"


def randomize(model: torch.nn.Module) -> Any:
  """Draws every parameter, so that biases and norms also affect the outputs.

  Matrix products keep the scale of their inputs at any width. Returns the model
  without dropout.
  """
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if "norm" in name.lower() and name.endswith("weight"):
        parameter.normal_(1.0, 0.1)
        if name.endswith("cls.LayerNorm.weight"):
          # Norm of a projection. With this scale, scores differ by about one
          # between blocks, so that each block has a share of the gradient.
          parameter *= math.sqrt(16 / len(parameter))
      elif parameter.ndim == 1:
        parameter.normal_(0.0, 0.1)
      else:
        parameter.normal_(0.0, 0.9 / math.sqrt(parameter.shape[-1]))
  return model.eval()


def as_inputs(
  inputs: RandomInputs, rows: list[Tokens], length: int
) -> dict[str, torch.Tensor]:
  """Returns BERT's inputs for rows of ids: ids, mask and types, [n, length]."""
  ids = padded(rows, length)
  types = padded([inputs.types(tokens) for tokens in rows], length)
  return {
    "input_ids": torch.from_numpy(ids),
    "attention_mask": torch.from_numpy((ids != PAD_ID).astype(np.int64)),
    "token_type_ids": torch.from_numpy(types),
  }


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
  """Returns the gradients of all used parameters, by name in the file."""
  return {
    f"gradient/{name}": parameter.grad
    for name, parameter in model.named_parameters()
    if parameter.grad is not None
  }


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
  """Writes tensors, arrays and numbers to an `.npz` file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  plain: dict[str, Any] = {
    name: value.detach().numpy()
    if isinstance(value, torch.Tensor)
    else np.asarray(value)
    for name, value in arrays.items()
  }
  # Uncompressed, because random data does not shrink and would take minutes.
  np.savez(path, **plain)
