"""Batches of fixed shapes, of which each process keeps its own rows.

Every process reads the whole stream, so that all of them agree on the next
position without communicating.
"""

import dataclasses
import functools
from collections.abc import Generator, Iterator

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.context import TaskError
from realm_jax.inputs.examples import ExampleStream


@dataclasses.dataclass(frozen=True)
class Batch:
  """One process's rows of a global batch.

  Attributes:
    arrays: Numeric features of fixed shape, padded with 0.
    host: Other features, such as texts, padded to the longest of the batch.
    is_real: False for a row that only fills up the last batch of an epoch;
      such a row repeats the last real one.
    next_position: Stream position after the global batch.
  """

  arrays: dict[str, np.ndarray]
  host: dict[str, np.ndarray]
  is_real: Bool[np.ndarray, " b"]
  next_position: int

  def texts(self, name: str) -> list[str]:
    """Returns a feature that has one text a row, such as "question"."""
    return [text.decode() for text in self.host[name]]

  @functools.cached_property
  def answers(self) -> list[list[str]]:
    """The texts of each row's answers."""
    return [
      [text.decode() for text in row if text] for row in self.host["answers"]
    ]

  @functools.cached_property
  def answer_tokens(self) -> list[list[tuple[int, ...]]]:
    """The token ids of each row's answers; a pattern has none."""
    return [
      [tuple(answer[answer != 0].tolist()) for answer in row if answer.any()]
      for row in self.host["answer_tokens"]
    ]


class BatchStream:
  """An iterator over the batches of a task, which it prepares ahead.

  The last batch of a stream without `repeat` is filled up. Other arguments are
  those of `ExampleStream`.

  Args:
    start_position: Stream position of the first example: 0, or the
      `next_position` of an earlier batch.
    process_index: Process, of `process_count`, whose rows are kept.

  Raises:
    TaskError: The task does not exist or cannot be read.
    ValueError: The processes cannot share the batch evenly.
  """

  def __init__(
    self,
    config: DataConfig,
    *,
    start_position: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    shuffle: bool = True,
    repeat: bool = True,
  ):
    if config.batch_size % process_count:
      raise ValueError(
        f"batch_size={config.batch_size} is not a multiple of the "
        f"{process_count} processes that share it; change BATCH_SIZE"
      )
    rows = config.batch_size // process_count
    self._rows = slice(process_index * rows, (process_index + 1) * rows)
    self._config = config
    self._stream = ExampleStream(
      config, start_position=start_position, shuffle=shuffle, repeat=repeat
    )
    self._last_position = start_position - 1
    self._batches = self._prepare()

  def _prepare(self) -> Generator[Batch, None, None]:
    """Yields the batches; it prepares none before the first is asked for."""
    config, examples = self._config, self._stream.dataset
    shapes = {
      name: tuple(
        config.lengths.get(name) if axis == 0 and size is None else size
        for axis, size in enumerate(spec.shape)
      )
      for name, spec in examples.element_spec.items()
    }
    fixed = {name for name, shape in shapes.items() if None not in shape}
    batches = examples.padded_batch(config.batch_size, shapes)
    batches = batches.prefetch(config.batches_ahead)
    for padded in self._stream.guard(batches.as_numpy_iterator()):
      yield self._batch(padded, fixed)

  def __iter__(self) -> Iterator[Batch]:
    return self

  def __next__(self) -> Batch:
    return next(self._batches)

  def _batch(self, padded: dict[str, np.ndarray], fixed: set[str]) -> Batch:
    positions = padded.pop("position")
    self._check_increasing(positions)
    num_real = len(positions)
    # The rows of this process; those past the end repeat the last real one.
    rows = np.arange(self._rows.start, self._rows.stop)
    arrays, host = {}, {}
    for name, value in sorted(padded.items()):
      is_array = name in fixed and value.dtype != object
      target = arrays if is_array else host
      target[name] = value[np.minimum(rows, num_real - 1)]
    return Batch(
      arrays=arrays,
      host=host,
      is_real=rows < num_real,
      next_position=int(positions[-1]) + 1,
    )

  def _check_increasing(self, positions: Int[np.ndarray, " b"]) -> None:
    """Raises `TaskError` if the stream could not resume after an example."""
    steps = np.diff(positions, prepend=self._last_position)
    if (steps <= 0).any():
      position = int(positions[np.argmax(steps <= 0)])
      raise TaskError(
        f"the task gives position {position} twice or out of order; its "
        "preprocessors may drop records, but not shuffle them nor make "
        "several examples of one"
      )
    self._last_position = int(positions[-1])

  def close(self) -> None:
    """Stops the threads that prepare batches and ends the iterator."""
    self._batches.close()
