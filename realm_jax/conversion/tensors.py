"""Where the tensors of a foreign checkpoint come from."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from realm_jax.indexes.protocol import Rows


@runtime_checkable
class TensorSource(Protocol):
  """Named tensors of a foreign checkpoint, read one at a time."""

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor, by its name in the file."""
    ...

  def read(self, name: str) -> np.ndarray:
    """One tensor in its stored dtype (bfloat16 is that of ml_dtypes)."""
    ...

  def rows(self, name: str) -> Rows:
    """One tensor to be read in slices, as block vectors are.

    It need not fit in memory, where the file allows it.
    """
    ...
