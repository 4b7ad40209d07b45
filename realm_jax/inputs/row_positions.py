"""Which positions of the stream a process reads for its rows of the batch.

Row i of every global batch of size B is a stream of its own: the positions i,
i + B, i + 2B, … without the records that the task's preprocessors drop. A
process therefore reads no record of another process's rows, and the order of
the data is the same in every layout. Which row is read ahead of which others
decides only when an example is ready, never where it goes.
"""

import threading
from typing import Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from jaxtyping import Int, Int64

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.sequential import SequentialReader
from realm_jax.inputs.sources import PositionReader


def _out_of_order(position: int) -> TaskError:
  return TaskError(
    f"the task gives position {position} twice or out of order; its "
    "preprocessors may drop records, but not shuffle them nor make "
    "several examples of one"
  )


@runtime_checkable
class RowPositions(Protocol):
  """The positions of a process's rows, in the order in which they are read."""

  def records(self) -> tf.data.Dataset:
    """Returns the records at the positions; call it once."""
    ...

  def received(self, positions: Int64[np.ndarray, " n"]) -> None:
    """Notes that examples have been made, in this order.

    Raises:
      TaskError: Positions are repeated, or not in the order of their records.
    """
    ...

  def used(self, rows: Int[np.ndarray, " n"]) -> None:
    """Notes that each of these rows has used an example.

    They are counted from 0 among the rows of the process.
    """
    ...

  def next_to_read(self) -> Int64[np.ndarray, " b"]:
    """Returns the position up to which each row has been read."""
    ...


class RequestedPositions:
  """Positions read as rows need them, from a source with random access.

  Whenever tf.data has room for more records, the rows that have the fewest
  examples coming get their next position. An example is coming from when its
  position is given out until it is used, unless its record is found to be
  dropped. So a row that drops more is read more, and the others do not pile up
  examples. The call never waits, so that no thread hangs when the stream is
  closed.

  Args:
    positions: Position of each own row's next record.
    batch_size: Number of rows of the global batch.
    repeat: Whether epochs follow each other without end.
  """

  def __init__(
    self,
    reader: PositionReader,
    positions: Int64[np.ndarray, " b"],
    *,
    batch_size: int,
    repeat: bool,
  ):
    self._reader = reader
    self._batch_size = batch_size
    largest = np.iinfo(np.int64).max
    self._limit = largest if repeat else reader.num_records
    # tf.data's threads request positions while the consumer's notes examples.
    self._lock = threading.Lock()
    self._next = positions.copy()
    self._coming = np.zeros(len(positions), np.int64)
    # Requested positions, in order, of which nothing is known, and their rows.
    self._in_flight: dict[int, int] = {}

  def records(self) -> tf.data.Dataset:
    def request(call: tf.Tensor) -> tf.Tensor:
      del call
      positions = tf.numpy_function(self._request, [], tf.int64)
      return tf.ensure_shape(positions, [None])

    requests = tf.data.Dataset.counter().map(request)
    requests = requests.take_while(lambda positions: tf.size(positions) > 0)
    return self._reader.records_at(requests.unbatch())

  def _request(self) -> Int64[np.ndarray, " n"]:
    """Returns the positions to read next; none at the end of the stream."""
    with self._lock:
      rows = np.flatnonzero(self._next < self._limit)
      if len(rows):
        coming = self._coming[rows]
        rows = rows[coming == coming.min()]
      positions = self._next[rows]
      self._next[rows] += self._batch_size
      self._coming[rows] += 1
      requested = zip(positions.tolist(), rows.tolist(), strict=True)
      self._in_flight.update(requested)
      return positions

  def received(self, positions: Int64[np.ndarray, " n"]) -> None:
    dropped = []
    with self._lock:
      for position in positions.tolist():
        if position not in self._in_flight:
          raise _out_of_order(position)
        # Examples come in the order of their records.
        while (earlier := next(iter(self._in_flight))) != position:
          dropped.append(self._in_flight.pop(earlier))
        del self._in_flight[position]
      np.subtract.at(self._coming, dropped, 1)

  def used(self, rows: Int[np.ndarray, " n"]) -> None:
    with self._lock:
      self._coming[rows] -= 1

  def next_to_read(self) -> Int64[np.ndarray, " b"]:
    with self._lock:
      return self._next.copy()


class ScannedPositions:
  """Positions of a source without random access, which is read from the front.

  Records of other processes' rows, and those before a row's position, are
  dropped before the task's preprocessors, which take most of the time. A row
  that waits for an example lets the others pile up theirs.

  Args:
    rows: Numbers of the process's rows.
    positions: Position of each own row's next record.
    batch_size: Number of rows of the global batch.
    repeat: Whether epochs follow each other without end.
  """

  def __init__(
    self,
    reader: SequentialReader,
    rows: Int[np.ndarray, " b"],
    positions: Int64[np.ndarray, " b"],
    *,
    batch_size: int,
    repeat: bool,
  ):
    self._reader, self._repeat = reader, repeat
    self._start = int(positions.min())
    self._starts = np.full(batch_size, np.iinfo(np.int64).max)
    self._starts[rows] = positions
    self._next = self._start
    self._num_rows = len(rows)

  def records(self) -> tf.data.Dataset:
    def is_wanted(record: dict[str, tf.Tensor]) -> tf.Tensor:
      position = record["position"]
      row = tf.math.floormod(position, len(self._starts))
      return position >= tf.gather(self._starts, row)

    records = self._reader.records(self._start, repeat=self._repeat)
    return records.filter(is_wanted)

  def received(self, positions: Int64[np.ndarray, " n"]) -> None:
    for position in positions.tolist():
      if position < self._next:
        raise _out_of_order(position)
      self._next = position + 1

  def used(self, rows: Int[np.ndarray, " n"]) -> None:
    del rows  # Nothing is read for them alone.

  def next_to_read(self) -> Int64[np.ndarray, " b"]:
    return np.full(self._num_rows, self._next)
