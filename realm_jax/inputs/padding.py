"""Examples padded in blocks by tf.data, and batches made of any of their rows.

A block has the examples that happen to be made one after another. What a batch
looks like does not depend on them: features of fixed shape are padded to it,
and others to the longest of the batch.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Int32

# Before the name of a feature of the host: its shape in each example.
_SHAPE = "shape of "

# Padded features by name.
Block = dict[str, np.ndarray]


class PaddedExample(NamedTuple):
  """One row of a block."""

  block: Block
  row: int


class Padding:
  """Pads the examples of a data set.

  Args:
    examples: Examples of any lengths.
    lengths: Padded length of features by name. Others of variable shape stay
      on the host, as do texts.
  """

  def __init__(self, examples: tf.data.Dataset, lengths: Mapping[str, int]):
    self._examples = examples
    self._shapes = {
      name: tuple(
        lengths.get(name) if axis == 0 and size is None else size
        for axis, size in enumerate(spec.shape)
      )
      for name, spec in examples.element_spec.items()
    }
    self._types = {
      name: spec.dtype.as_numpy_dtype
      for name, spec in examples.element_spec.items()
    }
    self._on_host = [
      name
      for name, shape in self._shapes.items()
      if None in shape or self._types[name] is object
    ]

  def blocks(self, size: int) -> tf.data.Dataset:
    """Returns blocks of `size` examples; the last one may have fewer."""

    def with_shapes(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      shapes = {_SHAPE + n: tf.shape(example[n]) for n in self._on_host}
      return {**example, **shapes}

    shapes = {
      _SHAPE + name: (len(self._shapes[name]),) for name in self._on_host
    }
    return self._examples.map(with_shapes).padded_batch(
      size, self._shapes | shapes
    )

  def join(
    self, examples: Sequence[PaddedExample]
  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the features of a batch of fixed shape, and those of the host."""
    blocks = {id(block): block for block, _ in examples}
    sizes = [len(next(iter(block.values()))) for block in blocks.values()]
    starts = dict(zip(blocks, np.cumsum([0, *sizes]).tolist(), strict=False))
    indices = np.array([starts[id(block)] + row for block, row in examples])
    arrays, host = {}, {}
    for name in sorted(self._shapes):
      if name in self._on_host:
        values = [block[name][row] for block, row in examples]
        shapes = [block[_SHAPE + name][row] for block, row in examples]
        host[name] = self._padded(name, values, shapes)
      else:
        columns = [block[name] for block in blocks.values()]
        arrays[name] = np.concatenate(columns)[indices]
    return arrays, host

  def _padded(
    self,
    name: str,
    values: Sequence[np.ndarray | np.generic | bytes],
    shapes: Sequence[Int32[np.ndarray, " axes"]],
  ) -> np.ndarray:
    """Pads values to the longest of them, in each axis."""
    longest = np.max(shapes, axis=0).astype(int).tolist()
    padded = self._zeros(name, (len(values), *longest))
    for i, (value, shape) in enumerate(zip(values, shapes, strict=True)):
      part = tuple(map(slice, shape))
      padded[(i, *part)] = np.asarray(value)[part]
    return padded

  def _zeros(self, name: str, shape: Sequence[int]) -> np.ndarray:
    dtype = self._types[name]
    return np.full(shape, b"" if dtype is object else 0, dtype)
