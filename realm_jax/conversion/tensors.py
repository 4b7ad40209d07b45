"""The tensors of a foreign checkpoint."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from realm_jax.indexes.protocol import Rows

Shape = tuple[int, ...]


@runtime_checkable
class TensorSource(Protocol):
  """Named tensors of a foreign checkpoint, read one at a time."""

  @property
  def shapes(self) -> Mapping[str, Shape]:
    """The shape of every tensor, by its name in the file."""
    ...

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    ...

  def rows(self, name: str) -> Rows:
    """Returns a tensor that is read in slices, as block vectors are.

    Where the file format allows it, the tensor need not fit in memory.
    """
    ...
