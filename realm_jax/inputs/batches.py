"""Batches of fixed shapes for a step, each process its own rows.

Every process reads the whole stream and keeps its rows, so that all of them
agree on a batch's shape and on the next position without talking.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from etils import epath
from jaxtyping import Bool, Int

from realm_jax.inputs.context import TaskContext, TaskError
from realm_jax.inputs.examples import ExampleStream


@dataclasses.dataclass(frozen=True)
class Batch:
  """This process's rows of one global batch.

  Attributes:
    arrays: the numeric features of fixed shape, padded with 0.
    host: the others, texts among them, padded to the longest of the batch.
    is_real: False where a row only fills up the last batch of an epoch; such
      a row repeats the last real one.
    next_position: where the stream goes on after the global batch.
  """

  arrays: dict[str, np.ndarray]
  host: dict[str, np.ndarray]
  is_real: Bool[np.ndarray, " b"]
  next_position: int

  def texts(self, name: str) -> list[str]:
    """A feature that is one text a row, such as "question"."""
    return [text.decode() for text in self.host[name]]

  @functools.cached_property
  def answers(self) -> list[list[str]]:
    """The answers of each row's question."""
    return [
      [text.decode() for text in row if text] for row in self.host["answers"]
    ]

  @functools.cached_property
  def answer_tokens(self) -> list[list[tuple[int, ...]]]:
    """The token ids of each row's answers; of patterns there are none."""
    return [
      [tuple(answer[answer != 0].tolist()) for answer in row if answer.any()]
      for row in self.host["answer_tokens"]
    ]


class BatchStream:
  """The batches of a task from a position on; runs ahead of its reader."""

  def __init__(
    self,
    task: str,
    *,
    split: str,
    corpus_dir: epath.PathLike,
    batch_size: int,
    query_length: int | Sequence[int],
    block_length: int,
    max_masks: int = 10,
    other_lengths: Mapping[str, int] | None = None,
    question_files: Mapping[str, epath.PathLike] | None = None,
    corpus_version: int | None = None,
    seed: int = 0,
    start_position: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
    process_index: int = 0,
    process_count: int = 1,
    batches_ahead: int = 2,
    num_threads: int | None = None,
    task_modules: Sequence[str] = ("tasks",),
  ):
    """Opens the stream; reading starts with the first batch asked for.

    Args:
      task: the name of a seqio task.
      split: of its source.
      corpus_dir: the run's corpus.
      batch_size: of the global batch.
      query_length: the padded length of queries, or several, of which a batch
        takes the shortest that holds its longest query.
      block_length: the padded length of blocks.
      max_masks: how many masks of a query are scored.
      other_lengths: padded lengths of further features, for tasks that have
        them; a feature without one stays on the host.
      question_files: JSON Lines of questions, by split.
      corpus_version: of the corpus; None takes the newest.
      seed: of order and masks.
      start_position: 0, or the `next_position` of an earlier batch.
      shuffle: False reads in the source's own order.
      repeat: whether epochs follow each other without end; otherwise the
        last batch is filled up.
      process_index: whose rows are kept.
      process_count: how many processes share the global batch.
      batches_ahead: how many batches are prepared before they are asked for.
      num_threads: that prepare them; by default TensorFlow's own pool.
      task_modules: modules that add tasks when imported.

    Raises:
      TaskError: the task does not exist or cannot be read.
      ValueError: the batch cannot be shared out evenly.
    """
    if batch_size % process_count:
      raise ValueError(
        f"batch_size={batch_size} is not a multiple of the {process_count} "
        "processes that share it"
      )
    self._batch_size = batch_size
    rows = batch_size // process_count
    self._rows = slice(process_index * rows, (process_index + 1) * rows)
    self._batches_ahead = batches_ahead
    self._query_lengths = sorted(np.atleast_1d(query_length).tolist())
    self._stream = ExampleStream(
      task,
      split=split,
      context=TaskContext(
        corpus_dir, dict(question_files or {}), corpus_version
      ),
      lengths={
        "query": self._query_lengths[-1],
        "block": block_length,
        "mask_positions": max_masks,
        "mask_targets": max_masks,
        "mask_weights": max_masks,
        **(other_lengths or {}),
      },
      seed=seed,
      start_position=start_position,
      shuffle=shuffle,
      repeat=repeat,
      num_threads=num_threads,
      task_modules=task_modules,
    )
    self._elements: Iterator[dict[str, np.ndarray]] | None = None
    self._is_closed = False
    self._last_position = start_position - 1

  @functools.cached_property
  def _padded_shapes(self) -> dict[str, tuple[int | None, ...]]:
    lengths = self._stream.lengths
    return {
      name: tuple(
        lengths.get(name) if axis == 0 and size is None else size
        for axis, size in enumerate(spec.shape)
      )
      for name, spec in self._stream.dataset.element_spec.items()
    }

  def _start(self) -> Iterator[dict[str, np.ndarray]]:
    batches = self._stream.dataset.padded_batch(
      self._batch_size, self._padded_shapes
    )
    batches = batches.prefetch(self._batches_ahead)
    return self._stream.guard(batches.as_numpy_iterator())

  def __iter__(self) -> Iterator[Batch]:
    return self

  def __next__(self) -> Batch:
    if self._is_closed:
      raise StopIteration
    if self._elements is None:
      self._elements = self._start()
    return self._batch(next(self._elements))

  def _batch(self, padded: dict[str, np.ndarray]) -> Batch:
    positions = padded.pop("position")
    self._check_increasing(positions)
    num_real = len(positions)
    if "query" in padded:
      longest = int(np.count_nonzero(padded["query"], axis=1).max())
      fits = [length for length in self._query_lengths if length >= longest]
      padded["query"] = padded["query"][:, : fits[0]]
    # The rows of this process; those past the end repeat the last real one.
    rows = np.arange(self._rows.start, self._rows.stop)
    values = {
      name: value[np.minimum(rows, num_real - 1)]
      for name, value in padded.items()
    }
    fixed = {
      name
      for name, value in values.items()
      if value.dtype != object and None not in self._padded_shapes[name]
    }
    return Batch(
      arrays={name: values[name] for name in sorted(fixed)},
      host={name: values[name] for name in sorted(values.keys() - fixed)},
      is_real=rows < num_real,
      next_position=int(positions[-1]) + 1,
    )

  def _check_increasing(self, positions: Int[np.ndarray, " b"]) -> None:
    """Raises `TaskError` where the stream could not resume after an example."""
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
    """Stops the threads that run ahead; the stream then is at its end."""
    self._is_closed = True
    self._elements = None
