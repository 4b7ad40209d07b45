"""Batches as t5x wants them: a dictionary of arrays with a row an example.

t5x divides every array of a batch over the devices by its first axis, which
must be the batch size. The batches of our steps are typed pytrees, and some of
their arrays have several rows an example: one for each candidate.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from realm_jax.models.arrays import AnyArray
from realm_jax.training.batches import StepBatch


@dataclasses.dataclass(frozen=True)
class BatchArrays:
  """The layout of a stage's batches as dictionaries of arrays.

  Args:
    example: Batch of one example, which has the structure of all batches.
  """

  example: StepBatch

  @property
  def _shapes(self) -> dict[str, Any]:
    """Returns the arrays of one example by name, in the order of the tree."""
    return {
      jax.tree_util.keystr(path, simple=True, separator="/"): leaf
      for path, leaf in jax.tree_util.tree_leaves_with_path(self.example)
    }

  def specs(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and types of the arrays of a batch."""
    return {
      name: jax.ShapeDtypeStruct(
        (batch_size, *_of_one_example(leaf)), leaf.dtype
      )
      for name, leaf in self._shapes.items()
    }

  def flatten(self, batch: StepBatch) -> dict[str, np.ndarray]:
    """Returns a batch as arrays by name, each with a row an example.

    Every example is a group of rows of its own.
    """
    leaves = jax.tree.leaves(batch)
    return {
      name: np.asarray(array).reshape(-1, *_of_one_example(leaf))
      for (name, leaf), array in zip(self._shapes.items(), leaves, strict=True)
    }

  def unflatten(self, arrays: Mapping[str, AnyArray]) -> StepBatch:
    """Returns the batch of such arrays."""
    leaves = [
      arrays[name].reshape(-1, *leaf.shape[1:])
      for name, leaf in self._shapes.items()
    ]
    structure = jax.tree.structure(self.example)
    return jax.tree.unflatten(structure, leaves)


def _of_one_example(leaf: np.ndarray) -> tuple[int, ...]:
  """Returns the shape that an example's part of an array has."""
  rows, *shape = leaf.shape
  return tuple(shape) if rows == 1 else (rows, *shape)
