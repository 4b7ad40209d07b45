"""Tensors held in a dict, as a source for tests."""

from collections.abc import Mapping

import numpy as np


class DictSource:
  """A `TensorSource` over arrays in memory."""

  def __init__(self, tensors: Mapping[str, np.ndarray]):
    self._tensors = dict(tensors)

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in self._tensors.items()}

  def read(self, name: str) -> np.ndarray:
    return self._tensors[name]

  def rows(self, name: str) -> np.ndarray:
    return self._tensors[name]
