"""Batches of fixed shapes, each of which has one example of every row.

A process reads its own rows of the global batch and no others; see
`realm_jax.inputs.examples.ExampleStream`.
"""

import collections
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from realm_jax.inputs.batch import FILLER, Batch, TaskError
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import Example, ExampleStream


def _padded(
  values: Sequence[np.ndarray | np.generic | bytes],
  shape: Sequence[int | None],
  dtype: type[np.generic] | type[object],
) -> np.ndarray:
  """Joins values, each padded to a shape; an axis of None to the longest."""
  longest = np.max([np.shape(value) for value in values], axis=0).astype(int)
  sizes = [
    found if size is None else size
    for size, found in zip(shape, longest.tolist(), strict=True)
  ]
  padding = b"" if dtype is object else 0
  padded = np.full((len(values), *sizes), padding, dtype)
  for place, value in enumerate(values):
    padded[(place, *map(slice, np.shape(value)))] = value
  return padded


class BatchStream:
  """An iterator over the batches of a task, whose examples it prepares ahead.

  Each batch has one example of every row of this process. Without `repeat`, a
  row that has run out of examples gives filler, which repeats a real example;
  the stream ends when all rows of this process have run out.

  Args:
    config: Data of the run; its batch size is that of all processes together.
    positions: Stream position from which each row of this process goes on, in
      rising order of the rows: `next_positions` of an earlier batch, or the
      numbers of the rows to begin with. None is the start of all rows.
    shuffle, repeat: As `ExampleStream` takes them.

  Raises:
    TaskError: The task does not exist or cannot be read.
  """

  def __init__(
    self,
    config: DataConfig,
    *,
    positions: Int64[np.ndarray, " b"] | None = None,
    shuffle: bool = True,
    repeat: bool = True,
  ):
    if positions is None:
      positions = np.arange(config.batch_size)
    rows = (positions % config.batch_size).tolist()
    self._config = config
    self._stream = ExampleStream(
      config, positions=positions, shuffle=shuffle, repeat=repeat
    )
    # It makes no example before the first is asked for.
    self._examples = iter(self._stream)
    self._queues = {row: collections.deque[Example]() for row in rows}
    self._used: list[Example | None] = [None] * len(rows)
    self._next_positions = positions

  def __iter__(self) -> Iterator[Batch]:
    return self

  def __next__(self) -> Batch:
    queues = self._queues.values()
    while not all(queues) and (example := next(self._examples, None)):
      row = int(example["position"]) % self._config.batch_size
      self._queues[row].append(example)
    if not any(queues):
      raise StopIteration
    return self._batch()

  def close(self) -> None:
    """Stops the threads that prepare examples and ends the iterator."""
    self._examples.close()
    self._queues.clear()

  def _batch(self) -> Batch:
    """Makes a batch of an example from each queue that has one."""
    is_real = np.array([bool(queue) for queue in self._queues.values()])
    for place, queue in enumerate(self._queues.values()):
      if queue:
        self._used[place] = queue.popleft()
    some = self._used[int(np.argmax(is_real))]
    assert some is not None
    examples = [used or some for used in self._used]
    arrays, host = {}, {}
    for name, spec in sorted(self._stream.spec.items()):
      values = [example[name] for example in examples]
      shape = [*spec.shape]
      if shape and shape[0] is None:
        longest = max(np.shape(value)[0] for value in values)
        shape[0] = limit = self._config.lengths.get(name)
        if limit is not None and longest > limit:
          raise TaskError(
            f"task {self._config.task!r} gives a feature {name!r} of length "
            f"{longest}, and {limit} is its limit; raise it (QUERY_LENGTH, "
            "BLOCK_LENGTH, MAX_MASKS or OTHER_LENGTHS), or let a preprocessor "
            "cut the feature"
          )
      dtype = spec.dtype.as_numpy_dtype
      features = host if None in shape or dtype is object else arrays
      features[name] = _padded(values, shape, dtype)
    positions = arrays.pop("position")
    self._next_positions = np.where(
      is_real, positions + self._config.batch_size, self._next_positions
    )
    positions = np.where(is_real, positions, FILLER)
    return Batch(arrays, host, positions, self._next_positions)
