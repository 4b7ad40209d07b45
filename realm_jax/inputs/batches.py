"""Batches of fixed shapes, each of which has one example of every row.

A process reads its own rows of the global batch and no others; see
`realm_jax/inputs/row_positions.py`.
"""

import collections
import dataclasses
import functools
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import numpy as np
from jaxtyping import Bool, Int, Int64

from realm_jax.inputs.config import DataConfig, TaskError
from realm_jax.inputs.examples import TaskExamples
from realm_jax.inputs.padding import Block, PaddedExample, Padding
from realm_jax.inputs.row_positions import (
  RequestedPositions,
  RowPositions,
  ScannedPositions,
)
from realm_jax.inputs.sequential import SequentialReader
from realm_jax.text.answers import AnswerKind

# Examples that tf.data hands over together, which hides the cost of the call.
_EXAMPLES_PER_BLOCK = 64
_FILLER = -1


@dataclasses.dataclass(frozen=True)
class Batch:
  """One process's rows of a global batch.

  Attributes:
    arrays: Numeric features of fixed shape, padded with 0.
    host: Other features, such as texts, padded to the longest of the batch.
    positions: Stream position of each row's example; -1 in a row that only
      fills up the batch, since it has run out of examples.
    next_positions: Stream position from which each row goes on after this
      batch.
  """

  arrays: dict[str, np.ndarray]
  host: dict[str, np.ndarray]
  positions: Int64[np.ndarray, " b"]
  next_positions: Int64[np.ndarray, " b"]

  @property
  def is_real(self) -> Bool[np.ndarray, " b"]:
    """Whether a row is an example, and no filler."""
    return self.positions != _FILLER

  def array(self, name: str) -> np.ndarray:
    """Returns a numeric feature of fixed shape.

    Raises:
      TaskError: The task does not give it.
    """
    if name not in self.arrays:
      raise _missing(name, self.arrays)
    return self.arrays[name]

  def texts(self, name: str) -> list[str]:
    """Returns a feature that has one text a row, such as "question".

    Raises:
      TaskError: The task does not give it.
    """
    if name not in self.host:
      raise _missing(name, self.host)
    return [text.decode() for text in self.host[name]]

  @functools.cached_property
  def answers(self) -> list[list[str]]:
    """The texts of each row's answers."""
    return [
      [text.decode() for text in row if text] for row in self.host["answers"]
    ]

  @functools.cached_property
  def answer_kinds(self) -> list[AnswerKind]:
    """Whether each row's answers are strings or regular expressions."""
    return cast(list[AnswerKind], self.texts("answer_kind"))

  @functools.cached_property
  def answer_tokens(self) -> list[list[tuple[int, ...]]]:
    """The token ids of each row's answers; a pattern has none."""
    return [
      [tuple(answer[answer != 0].tolist()) for answer in row if answer.any()]
      for row in self.host["answer_tokens"]
    ]


def _missing(name: str, features: Iterable[str]) -> TaskError:
  return TaskError(
    f"the task gives no feature {name!r}, which this stage reads, only "
    f"{', '.join(sorted(features))}; let its preprocessors return {name!r}, as "
    "those of the tasks in tasks/ do"
  )


class BatchStream:
  """An iterator over the batches of a task, which it prepares ahead.

  Each batch has one example of every row of this process. Without `repeat`, a
  row that has run out of examples gives filler, which repeats a real example;
  the stream ends when all rows of this process have run out.

  Args:
    config: Data of the run; its batch size is that of all processes together.
    rows: Numbers of the global batch's rows that this process owns, in rising
      order; None for all of them.
    positions: Stream position from which each of these rows goes on, the
      `next_positions` of an earlier batch; None for the start.
    shuffle: Whether each epoch has its own order, or that of the source.
    repeat: Whether epochs follow each other without end.

  Raises:
    TaskError: The task does not exist or cannot be read.
    ValueError: The positions are not of these rows.
  """

  def __init__(
    self,
    config: DataConfig,
    *,
    rows: Int[np.ndarray, " b"] | None = None,
    positions: Int64[np.ndarray, " b"] | None = None,
    shuffle: bool = True,
    repeat: bool = True,
  ):
    if rows is None:
      rows = np.arange(config.batch_size)
    if positions is None:
      positions = rows.astype(np.int64)
    if not np.array_equal(positions % config.batch_size, rows):
      raise ValueError(
        f"positions {positions} are not of the rows {rows} of batches of "
        f"{config.batch_size}"
      )
    self._config, self._repeat = config, repeat
    self._task = TaskExamples(config, shuffle=shuffle, repeat=repeat)
    self._row_positions = self._open(rows, positions)
    # Place of a row of the global batch among those of this process.
    self._places = {row: place for place, row in enumerate(rows.tolist())}
    self._queues = [collections.deque[PaddedExample]() for _ in rows]
    self._used: list[PaddedExample | None] = [None] * len(rows)
    self._received = positions.copy()
    self._next_positions = positions
    self._batches = self._prepare()
    # A batch is joined while the one before it is used.
    self._thread = ThreadPoolExecutor(1, "batches")
    self._ahead: Future[Batch | None] | None = None
    self._is_closed = False

  def _open(
    self, rows: Int[np.ndarray, " b"], positions: Int64[np.ndarray, " b"]
  ) -> RowPositions:
    reader = self._task.reader
    size, repeat = self._config.batch_size, self._repeat
    if isinstance(reader, SequentialReader):
      return ScannedPositions(
        reader, rows, positions, batch_size=size, repeat=repeat
      )
    return RequestedPositions(reader, positions, batch_size=size, repeat=repeat)

  @functools.cached_property
  def _padding(self) -> Padding:
    examples = self._task.examples(self._row_positions.records())
    return Padding(examples, self._config.lengths)

  def _prepare(self) -> Generator[Batch, None, None]:
    """Yields the batches; it prepares none before the first is asked for."""
    num_rows = len(self._queues)
    block_size = min(num_rows, _EXAMPLES_PER_BLOCK)
    num_ahead = -(-self._config.batches_ahead * num_rows // block_size)
    dataset = self._padding.blocks(block_size).prefetch(num_ahead)
    blocks = self._task.guard(dataset.as_numpy_iterator())
    while True:
      while not all(self._queues) and (block := next(blocks, None)):
        self._receive(block)
        if self._is_closed:
          return
      if not any(self._queues):
        return
      yield self._batch()

  def _receive(self, block: Block) -> None:
    """Queues the examples of a block for their rows.

    Raises:
      TaskError: A row of an endless stream has no example among many records.
    """
    positions, size = block["position"], self._config.batch_size
    self._row_positions.received(positions)
    places = [self._places[row] for row in (positions % size).tolist()]
    for index, place in enumerate(places):
      self._queues[place].append(PaddedExample(block, index))
    # Of several positions of a row, the last one remains.
    self._received[places] = positions + size
    if self._repeat:
      read = self._row_positions.next_to_read() - self._received
      self._task.require_fruitful(int(read.max()) // size)

  def _batch(self) -> Batch:
    """Takes an example from each queue that has one."""
    is_real = np.array([bool(queue) for queue in self._queues])
    for place in np.flatnonzero(is_real):
      self._used[place] = self._queues[place].popleft()
    self._row_positions.used(np.flatnonzero(is_real))
    some = self._used[int(np.argmax(is_real))]
    assert some is not None
    return self._join([used or some for used in self._used], is_real)

  def _join(
    self, examples: Sequence[PaddedExample], is_real: Bool[np.ndarray, " b"]
  ) -> Batch:
    """Makes a batch of an example for each row; not all of them are real."""
    arrays, host = self._padding.join(examples)
    positions = arrays.pop("position")
    self._next_positions = np.where(
      is_real, positions + self._config.batch_size, self._next_positions
    )
    positions = np.where(is_real, positions, _FILLER)
    return Batch(arrays, host, positions, self._next_positions)

  def __iter__(self) -> Iterator[Batch]:
    return self

  def __next__(self) -> Batch:
    ahead, self._ahead = self._ahead, None
    batch = ahead.result() if ahead else next(self._batches, None)
    if batch is None:
      raise StopIteration
    if self._config.batches_ahead:
      self._ahead = self._thread.submit(next, self._batches, None)
    return batch

  def close(self) -> None:
    """Stops the threads that prepare batches and ends the iterator."""
    self._is_closed = True
    self._thread.shutdown()
    self._ahead = None
    self._batches.close()
