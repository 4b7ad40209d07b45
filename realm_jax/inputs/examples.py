"""The examples of a task, as a pure function of task, seed and position.

They are the same however many processes read them and wherever they start: the
order of records is computed from the seed, each record has the seed of its
position, and an example names the position that it was made at, whatever
preprocessors filter out.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from realm_jax.inputs import mixture
from realm_jax.inputs.config import (
  DataConfig,
  TaskError,
  find_task,
  task_context,
)
from realm_jax.inputs.sequential import SequentialReader
from realm_jax.inputs.sources import (
  PositionReader,
  RandomAccessSource,
  RecordReader,
)

# Records that may give no example before an endless stream is an error.
_FRUITLESS_RECORDS = 20_000
_FRUITLESS = "no record gives an example"

# An example's features by name: arrays, and numpy's scalars and texts.
Example: TypeAlias = dict[str, np.ndarray | np.generic | bytes]

_T = TypeVar("_T")


class TaskExamples:
  """A seqio task or mixture that is opened to make examples of its records.

  Attributes:
    task: The task or mixture.
    reader: Reader of the records of the task's source.

  Args:
    config: Data of the run; its lengths are the largest that features have.
    shuffle: Whether each epoch has its own order, or that of the source.
    repeat: Whether epochs follow each other without end.

  Raises:
    TaskError: There is no such task, or its source cannot be resumed.
  """

  def __init__(self, config: DataConfig, *, shuffle: bool, repeat: bool):
    self.task = find_task(config.task, config.task_modules)
    self._config, self._repeat = config, repeat
    self._has_example = tf.Variable(tf.constant(False), trainable=False)
    with task_context(config):
      self.reader = self._open(shuffle)
      for problem in self.reader.problems(config.lengths):
        logging.warning(
          "task %r, split %r: %s", config.task, config.split, problem
        )

  @property
  def _tasks(self) -> Sequence[seqio.Task]:
    """The tasks of a mixture, or the one task."""
    return seqio.get_subtasks(self.task)

  def _open(self, shuffle: bool) -> PositionReader | SequentialReader:
    seed = self._config.seed
    if isinstance(self.task, seqio.Task):
      return self._open_task(self.task, seed=seed, shuffle=shuffle)
    readers = {}
    for task in self._tasks:
      own_seed = mixture.order_seed(seed, task.name)
      reader = self._open_task(task, seed=own_seed, shuffle=shuffle)
      if not isinstance(reader, RecordReader):
        raise TaskError(
          f"task {task.name!r} of the mixture {self.task.name!r} reads its "
          "source from the front, and a mixture reads at any position; give "
          "it a source that extends inputs.sources.RandomAccessSource"
        )
      readers[task.name] = reader
    rates = [self.task.get_rate(task) for task in self._tasks]
    return mixture.MixtureReader(readers, rates, seed=seed)

  def _open_task(
    self, task: seqio.Task, *, seed: int, shuffle: bool
  ) -> RecordReader | SequentialReader:
    source, split = task.source, self._config.split
    if split not in source.splits:
      raise TaskError(
        f"task {task.name!r} has no split {split!r}, only "
        f"{', '.join(source.splits) or 'those of question_files: none'}"
      )
    if task.requires_caching:
      raise TaskError(
        f"task {task.name!r} requires the cache of seqio_cache_tasks, which is "
        "not supported: it would freeze masks and draws, so that all epochs "
        "have those of the first. The corpus directory is the cache, of all "
        "that does not change; take CacheDatasetPlaceholder(required=True) out "
        "of the task's preprocessors"
      )
    if isinstance(source, RandomAccessSource):
      return RecordReader(source, split, seed=seed, shuffle=shuffle)
    buffer_size = task.shuffle_buffer_size if shuffle else None
    return SequentialReader(
      source, split, seed=seed, shuffle_buffer_size=buffer_size
    )

  def examples(self, records: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the examples of records, in order; read them through `guard`.

    An example has the task's features and "position".

    Raises:
      TaskError: The task does not hand on the positions of its records, or the
        tasks of a mixture have different features.
    """
    if self._repeat:
      records = records.enumerate().map(self._fail_if_fruitless)
    with task_context(self._config):
      if isinstance(self.task, seqio.Task):
        examples = self._examples_of(self.task, records)
      else:
        examples = self._mixed(records)
    if "position" not in examples.element_spec:
      raise TaskError(
        f"task {self.task.name!r} loses the position of its records, by which "
        'a run is resumed: let its preprocessors return "position" as they '
        f"got it (they returned {', '.join(sorted(examples.element_spec))})"
      )
    options = tf.data.Options()
    options.deterministic = True
    # An iterator that is dropped waits for the autotuner's thread, which may
    # sleep for a minute. What it tunes gains nothing that was measured here.
    options.autotune.enabled = False
    return examples.map(self._note_example).with_options(options)

  def _examples_of(
    self, task: seqio.Task, records: tf.data.Dataset
  ) -> tf.data.Dataset:
    """Returns what a task makes of records that have an order and seeds."""
    split = self._config.split
    source = seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: records, splits=[split]
    )
    return task.replace(source=source).get_dataset(
      sequence_length=self._config.lengths,
      split=split,
      shuffle=False,
      seed=self._config.seed,
      try_in_mem_cache=False,
    )

  def _mixed(self, records: tf.data.Dataset) -> tf.data.Dataset:
    """Returns what the tasks of a mixture make each of its own records.

    Preprocessors work on data sets, so every record is one, and drops stay in
    the order of the records.
    """

    lengths, seed = self._config.lengths, self._config.seed
    features = {}

    def of_task(
      mixed: dict[str, Any], number: int, task: seqio.Task
    ) -> tf.data.Dataset:
      common = {name: mixed[name] for name in ("position", "seed")}
      record = {**mixed["records"][number], **common}
      # As `Task.get_dataset` does, without its thread that prefetches.
      examples = task.preprocess_precache(
        tf.data.Dataset.from_tensors(record), seed
      )
      examples = task.preprocess_postcache(examples, lengths, seed)
      examples = seqio.trim_dataset(examples, lengths, task.output_features)
      features[task.name] = examples.element_spec
      return examples

    def one_example(mixed: dict[str, Any]) -> tf.data.Dataset:
      makers = [
        functools.partial(of_task, mixed, number, task)
        for number, task in enumerate(self._tasks)
      ]
      return tf.switch_case(mixed["task"], makers)

    try:
      return records.flat_map(one_example)
    finally:
      # TensorFlow's own error, if it gives any, names no feature.
      mixture.require_same_features(self.task.name, features)

  def _fail_if_fruitless(
    self, count: tf.Tensor, record: dict[str, Any]
  ) -> dict[str, Any]:
    """Fails if an endless stream has no example among many records."""
    is_fine = (count < _FRUITLESS_RECORDS) | self._has_example
    with tf.control_dependencies([tf.debugging.Assert(is_fine, [_FRUITLESS])]):
      return tf.nest.map_structure(tf.identity, record)

  def _note_example(
    self, example: dict[str, tf.Tensor]
  ) -> dict[str, tf.Tensor]:
    """Notes that there is an example, and drops its seed."""
    with tf.control_dependencies([self._has_example.assign(True)]):
      return {
        name: tf.identity(value)
        for name, value in example.items()
        if name != "seed"
      }

  def guard(self, elements: Iterator[_T]) -> Iterator[_T]:
    """Yields elements; raises a reader's own error instead of tf.data's.

    Raises:
      TaskError: The stream repeats, and no record gives an example.
    """
    try:
      yield from elements
    except Exception as error:  # Not GeneratorExit, at which TF may be gone.
      if not isinstance(error, tf.errors.OpError):
        raise
      if self.reader.error is not None:
        raise self.reader.error from None
      if _FRUITLESS in str(error):
        raise self._fruitless() from None
      raise

  def require_fruitful(self, num_records: int) -> None:
    """Checks the number of records that in succession have given no example.

    Raises:
      TaskError: There are too many for an endless stream.
    """
    if num_records >= _FRUITLESS_RECORDS:
      raise self._fruitless()

  def _fruitless(self) -> TaskError:
    return TaskError(
      f"task {self.task.name!r} keeps none of {_FRUITLESS_RECORDS:,} "
      "records: masked sentences need salient spans (see the summary of "
      "build_corpus), inverse cloze blocks of two sentences; or the "
      f"lengths are too short: {self._config.lengths}"
    )


class ExampleStream:
  """The examples of a seqio task from a position on, in a fixed order.

  Iterating yields dictionaries of numpy arrays, unpadded: the task's features
  and "position". A later stream resumes after an example at its position + 1.

  Attributes:
    task: The task.

  Args:
    config: Data of the run; its lengths are the largest that features have.
    start_position: Stream position of the first example.
    shuffle: Whether each epoch has its own order, or that of the source.
    repeat: Whether epochs follow each other without end.

  Raises:
    TaskError: There is no such task, or its source cannot be resumed.
  """

  def __init__(
    self,
    config: DataConfig,
    *,
    start_position: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
  ):
    self._examples = TaskExamples(config, shuffle=shuffle, repeat=repeat)
    self._start, self._repeat = start_position, repeat
    self.task = self._examples.task

  def __iter__(self) -> Iterator[Example]:
    reader = self._examples.reader
    records = reader.records(self._start, repeat=self._repeat)
    examples = self._examples.examples(records)
    return self._examples.guard(examples.as_numpy_iterator())
