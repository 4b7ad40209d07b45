"""Random inputs and parameters of torch models, their gradients, and files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

# File of inputs and outputs in a model's folder.
EXPECTED = "expected.npz"
PAD_ID = 0
Tokens = list[int]


class RandomInputs:
  """Draws sequences of word ids, determined by a seed.

  Args:
    pieces: Vocabulary.
    seed: Seed of all random numbers.
  """

  def __init__(self, pieces: list[str], *, seed: int):
    self.pieces = pieces
    self.cls_id = pieces.index("[CLS]")
    self.sep_id = pieces.index("[SEP]")
    self.mask_id = pieces.index("[MASK]")
    self.rng = np.random.default_rng(seed)
    # Without special tokens and continuations.
    is_word = [p.isascii() and p.isalpha() and len(p) > 2 for p in pieces]
    self._words = np.flatnonzero(is_word)

  def words(self, count: int) -> Tokens:
    """Draws ids of whole words."""
    return self.rng.choice(self._words, count).tolist()

  def text(self, count: int) -> str:
    """Draws words; one in eight is joined with the next one."""
    written = [self.pieces[i] for i in self.words(count)]
    joined = self.rng.random(count) < 1 / 8
    return "".join(
      word + ("" if join else " ")
      for word, join in zip(written, joined, strict=True)
    ).strip()

  def query(self, length: int) -> Tokens:
    """Draws `[CLS] x [SEP]` of at most `length` tokens."""
    count = int(self.rng.integers(length // 2, length - 1))
    return [self.cls_id, *self.words(count), self.sep_id]

  def block(self, length: int) -> Tokens:
    """Draws `[CLS] title [SEP] body [SEP]` of at most `length` tokens."""
    title = int(self.rng.integers(0, 4))
    body = int(self.rng.integers(length // 3, length - 2 - title))
    head = [self.cls_id, *self.words(title), self.sep_id]
    return [*head, *self.words(body), self.sep_id]

  @property
  def null_block(self) -> Tokens:
    """The block `[CLS] [SEP] [SEP]`."""
    return [self.cls_id, self.sep_id, self.sep_id]

  def joint(self, query: Tokens, block: Tokens, length: int) -> Tokens:
    """Returns `[CLS] x [SEP] body [SEP]`; a long body is truncated."""
    body = block[block.index(self.sep_id) + 1 : -1]
    return [*query, *body[: length - len(query) - 1], self.sep_id]

  def types(self, tokens: Tokens) -> Tokens:
    """Returns token types: 0 up to the first [SEP], 1 after it."""
    first = tokens.index(self.sep_id)
    return [int(position > first) for position in range(len(tokens))]


def padded(rows: list[Tokens], length: int) -> np.ndarray:
  """Pads rows of ids to one array, int64[n, length]."""
  array = np.full((len(rows), length), PAD_ID, np.int64)
  for row, tokens in zip(array, rows, strict=True):
    row[: len(tokens)] = tokens
  return array


def randomize(model: torch.nn.Module) -> Any:
  """Draws every parameter, so that biases and norms also affect the outputs.

  At any width, matrix products keep the scale of their inputs. Returns the
  model without dropout.
  """
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if "norm" in name.lower() and name.endswith("weight"):
        parameter.normal_(1.0, 0.1)
        if name.endswith("cls.LayerNorm.weight"):
          # Norm of a projection. With this scale, scores of blocks differ by
          # about one, so each block has a share of the gradient.
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
  plain: dict[str, Any] = {n: as_array(value) for n, value in arrays.items()}
  # Uncompressed, because random data does not shrink and would take minutes.
  np.savez(path, **plain)


def as_array(value: Any) -> np.ndarray:
  """Returns a tensor, an array or a number as an array."""
  return np.asarray(value.detach() if torch.is_tensor(value) else value)
