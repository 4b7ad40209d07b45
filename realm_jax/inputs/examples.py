"""The examples of a task, as a pure function of task, seed and position.

The examples do not depend on the number of processes or on where they start:
the order of records is computed from the seed, each record gets a seed from its
position, and each example carries its record's position, whatever preprocessors
filter out.
"""

import collections
import difflib
import functools
import importlib
import itertools
import math
import pkgutil
import threading
import zlib
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from jaxtyping import Int64

from realm_jax.configuration.kept import NotImported
from realm_jax.inputs.batch import Example, FeatureSpec
from realm_jax.inputs.config import DataConfig, TaskError, task_context
from realm_jax.inputs.sources import RECORDS_PER_LOOKUP, RecordReader, hashes

# Maximum number of records of an endless stream that yield no example.
_FRUITLESS_RECORDS = 20_000


def _import_tasks(module_name: str) -> None:
  """Imports a module, and each module in it if it is a package."""
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    # Other errors mean that the module exists, but lacks a library.
    if f"{module_name}.".startswith(f"{error.name}."):
      raise TaskError(
        f"no module {module_name!r} to find tasks in; is its folder on "
        "PYTHONPATH?"
      ) from error
    raise
  for submodule in pkgutil.iter_modules(getattr(module, "__path__", ())):
    importlib.import_module(f"{module_name}.{submodule.name}")


def find_task(
  name: str, task_modules: Sequence[str] = ("realm_jax.tasks",)
) -> seqio.Task | seqio.Mixture:
  """Imports the modules, and returns a seqio task or mixture.

  Raises:
    TaskError: There is no such task; the message lists similar names.
  """
  untrusted = [one for one in task_modules if isinstance(one, NotImported)]
  for module_name in task_modules:
    if module_name not in untrusted:
      _import_tasks(module_name)
  known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
  if name in known:
    return seqio.get_mixture_or_task(name)
  if untrusted:
    raise TaskError(
      f"no task named {name!r} here. The run has tasks in "
      f"{', '.join(untrusted)}, and nothing is imported because a MODEL_DIR "
      "names it; give "
      f"--modules={','.join(untrusted)} if you trust that"
    )
  near = difflib.get_close_matches(name, known, cutoff=0.4)
  raise TaskError(
    f"no task named {name!r} in {', '.join(task_modules)}; "
    + (f"did you mean {', '.join(near)}? " if near else "")
    + f"There are {', '.join(known)}. A new task is a file in tasks/, or a "
    "module named in task_modules"
  )


class ExampleStream:
  """The examples of a seqio task or mixture for some rows of the batch.

  Row i of every global batch of size B is a separate stream: the positions i,
  i + B, i + 2B, … without the records that the task's preprocessors drop. So a
  process reads no record of another process's rows, and the order of the data
  is the same for any number of processes.

  Iterating (once) yields dictionaries of unpadded NumPy arrays: the task's
  features and "position". To resume a row after an example, start it at the
  example's position + B. Whenever tf.data has room for more records, the rows
  with the fewest examples, received or still possible, get their next position.
  So a row that drops more records is read faster, and other rows do not
  accumulate examples.

  Args:
    config: Data of the run; its lengths bound the features.
    positions: Stream position of the next record of each row, in rising order
      of the rows; None for the start of all rows.
    shuffle: Whether to shuffle each epoch, or to keep the source's order.
    repeat: Whether to repeat epochs without end.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """

  def __init__(
    self,
    config: DataConfig,
    *,
    positions: Int64[np.ndarray, " b"] | None = None,
    shuffle: bool = True,
    repeat: bool = True,
  ):
    self.task = find_task(config.task, config.task_modules)
    self._config = config
    self._readers: dict[str, RecordReader] = {}
    with task_context(config):
      for task in seqio.get_subtasks(self.task):
        self._readers[task.name] = self._open(task, shuffle=shuffle)
    # Position at which the stream ends.
    self._limit = math.inf
    if not repeat:
      if isinstance(self.task, seqio.Mixture):
        raise TaskError(
          f"the mixture {self.task.name!r} has no end, since it draws records "
          f"by rate; read one of its tasks: {', '.join(self._readers)}"
        )
      self._limit = self._readers[self.task.name].num_records
    # tf.data's threads request positions while the consumer's thread records
    # examples.
    self._lock = threading.Lock()
    if positions is None:
      positions = np.arange(config.batch_size)
    self._next = positions.astype(np.int64)
    # For each row: the number of records with an example, or that may still
    # have one; and of records requested since the last example.
    self._possible = np.zeros(len(positions), np.int64)
    self._fruitless = np.zeros(len(positions), np.int64)
    # Requested positions without a result yet, in order, and their rows.
    self._in_flight = collections.OrderedDict[int, int]()
    # Number of examples that tf.data has made; they are received in chunks.
    self._num_made = tf.Variable(tf.zeros((), tf.int64))
    self._chunk_size = min(len(positions), RECORDS_PER_LOOKUP)
    # Exception of a request; tf.data itself keeps only the text.
    self._error: TaskError | None = None

  def _open(self, task: seqio.Task, *, shuffle: bool) -> RecordReader:
    """Opens the records of a task, and logs problems with them."""
    source, split, seed = task.source, self._config.split, self._config.seed
    # A source without splits reads files, and reports them in its errors.
    if source.splits and split not in source.splits:
      raise TaskError(
        f"task {task.name!r} has no split {split!r}, only "
        f"{', '.join(source.splits)}"
      )
    if task.requires_caching:
      raise TaskError(
        f"task {task.name!r} requires seqio's offline cache, which would give "
        "all epochs the masks and draws of the first; take "
        "CacheDatasetPlaceholder(required=True) out of its preprocessors"
      )
    if isinstance(self.task, seqio.Mixture):
      # Each task has its own order.
      seed += zlib.crc32(task.name.encode()) << 32
    reader = RecordReader(source, split, seed=seed, shuffle=shuffle)
    for problem in reader.problems(self._config.lengths):
      logging.warning("task %r, split %r: %s", task.name, split, problem)
    return reader

  @property
  def spec(self) -> Mapping[str, FeatureSpec]:
    """Shapes and types of the examples; raises the errors of iterating."""
    return {
      name: FeatureSpec([*spec.shape[1:]], spec.dtype.as_numpy_dtype)
      for name, spec in self._chunks.element_spec[0].items()
    }

  @tf.autograph.experimental.do_not_convert
  def _requested(self) -> tf.data.Dataset:
    """Returns the positions in the order in which they are read."""
    requests = tf.data.Dataset.counter().map(
      lambda _: tf.ensure_shape(
        tf.numpy_function(self._request, [self._num_made], tf.int64), [None]
      )
    )
    return requests.take_while(lambda batch: tf.size(batch) > 0).unbatch()

  @functools.cached_property
  def _chunks(self) -> tf.data.Dataset:
    """Examples in chunks, which cost less to receive than single ones."""
    positions = self._requested()
    with task_context(self._config):
      if isinstance(self.task, seqio.Task):
        records = self._readers[self.task.name].records_at(positions)
        examples = self._examples_of(self.task, records)
        chunks = self._chunked(examples, self._chunk_size)
      else:
        chunks = self._mixed(self.task, positions)
    options = tf.data.Options()
    options.deterministic = True
    # Autotuning gained nothing here, and its thread delays the end of a
    # process by up to a minute.
    options.autotune.enabled = False
    num_ahead = self._config.batches_ahead * len(self._next)
    return chunks.with_options(options).prefetch(num_ahead // self._chunk_size)

  @tf.autograph.experimental.do_not_convert
  def _chunked(self, examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Returns examples in chunks, each padded to its longest, with shapes."""
    spec = examples.element_spec
    if "position" not in spec:
      raise TaskError(
        f"task {self.task.name!r} loses the position of its records, by which "
        'a run is resumed: let its preprocessors return "position" as they '
        f"got it (they returned {', '.join(sorted(spec))})"
      )
    names = [name for name in spec if name != "seed"]

    def with_shapes(
      example: Mapping[str, tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
      self._num_made.assign_add(1)
      shapes = {n: tf.shape(example[n]) for n in names if None in spec[n].shape}
      return {name: example[name] for name in names}, shapes

    return examples.map(with_shapes).padded_batch(size)

  def _mixed(
    self, mixture: seqio.Mixture, positions: tf.data.Dataset
  ) -> tf.data.Dataset:
    """Returns chunks of examples at positions, each of the task drawn there.

    A hash of seed and position draws the task, weighted by the rates. The
    record is the one at this position in the task's own order. So the records
    of a task are drawn equally often, but not without replacement.
    """
    tasks, seed = seqio.get_subtasks(mixture), self._config.seed
    limits = np.cumsum([mixture.get_rate(task) for task in tasks])

    def draw(batch: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
      # A float64 in [0, 1) has 53 bits.
      drawn = (hashes(batch, seed=seed) >> np.uint64(11)) * 2.0**-53
      return np.searchsorted(limits[:-1] / limits[-1], drawn, side="right")

    @tf.autograph.experimental.do_not_convert
    def of_batch(batch: tf.Tensor) -> tf.data.Dataset:
      drawn = tf.numpy_function(draw, [batch], tf.int64, stateful=False)
      drawn = tf.ensure_shape(drawn, [None])
      parts, kinds = [], {}
      for number, task in enumerate(tasks):
        places = tf.data.Dataset.from_tensor_slices(batch[drawn == number])
        records = self._readers[task.name].records_at(places)
        parts.append(self._examples_of(task, records))
        kinds[task.name] = {
          (n, x.dtype.name, x.shape.rank)
          for n, x in parts[-1].element_spec.items()
        }
      # TensorFlow's own error, if any, does not name the feature.
      for (one, ours), (other, theirs) in itertools.pairwise(kinds.items()):
        if ours != theirs:
          raise TaskError(
            f"tasks of the mixture {mixture.name!r} differ in their features "
            f"(name, type, rank): {one} alone gives {sorted(ours - theirs)}, "
            f"{other} {sorted(theirs - ours)}"
          )
      whole = functools.reduce(tf.data.Dataset.concatenate, parts)

      def in_order(
        features: dict[str, tf.Tensor], shapes: dict[str, tf.Tensor]
      ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        is_at = features["position"][:, tf.newaxis] == batch
        order = tf.argsort(tf.argmax(tf.cast(is_at, tf.int32), axis=1))
        return tf.nest.map_structure(
          lambda values: tf.gather(values, order), (features, shapes)
        )

      # A batch of positions has at most one chunk.
      return self._chunked(whole, RECORDS_PER_LOOKUP).map(in_order)

    return positions.batch(RECORDS_PER_LOOKUP).flat_map(of_batch)

  def _examples_of(
    self, task: seqio.Task, records: tf.data.Dataset
  ) -> tf.data.Dataset:
    """Returns the examples of one task."""
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

  def __iter__(self) -> Generator[Example, None, None]:
    """Yields examples, in the order in which their positions are read.

    Raises:
      TaskError: The task does not return the positions of its records, once and
        in order. Or the tasks of a mixture have different features. Or the
        stream is endless, but no record has an example.
    """
    try:
      for features, shapes in self._chunks.as_numpy_iterator():
        columns = {name: [*values] for name, values in features.items()}
        for name, sizes in shapes.items():
          columns[name] = [
            value[tuple(map(slice, size))]
            for value, size in zip(columns[name], sizes.tolist(), strict=True)
          ]
        rows = zip(*columns.values(), strict=True)
        examples = [dict(zip(columns, row, strict=True)) for row in rows]
        self._receive([int(example["position"]) for example in examples])
        yield from examples
    except tf.errors.OpError:
      for error in (self._error, *(r.error for r in self._readers.values())):
        if error is not None:
          raise error from None
      raise

  def _request(self, num_made: np.int64) -> Int64[np.ndarray, " n"]:
    """Returns the positions to read next; none at the end of the stream.

    Never waits, so that no thread hangs when the stream is closed.
    """
    with self._lock:
      self._require_examples(has_example=bool(num_made))
      rows = np.flatnonzero(self._next < self._limit)
      fewest = self._possible[rows].min(initial=np.iinfo(np.int64).max)
      rows = rows[self._possible[rows] == fewest]
      positions = self._next[rows]
      self._next[rows] += self._config.batch_size
      self._possible[rows] += 1
      self._fruitless[rows] += 1
      requested = zip(positions.tolist(), rows.tolist(), strict=True)
      self._in_flight.update(requested)
      return positions

  def _require_examples(self, *, has_example: bool) -> None:
    """Raises a `TaskError` if many records of an endless stream have none."""
    since = self._fruitless
    num_records = since.max() if has_example else since.sum()
    if self._limit == math.inf and num_records >= _FRUITLESS_RECORDS:
      self._error = TaskError(
        f"task {self._config.task!r} keeps none of {_FRUITLESS_RECORDS:,} "
        "records: masked sentences need salient spans (see the summary of "
        "build_corpus), inverse cloze blocks of two sentences; or the "
        f"lengths are too short: {self._config.lengths}"
      )
      raise self._error

  def _receive(self, positions: Sequence[int]) -> None:
    """Records the positions of received examples.

    Raises:
      TaskError: A position is repeated, or not in the order of the records.
    """
    with self._lock:
      for position in positions:
        if position not in self._in_flight:
          raise TaskError(
            f"the task gives position {position} twice or out of order; its "
            "preprocessors may drop records, but not shuffle them nor make "
            "several examples of one"
          )
        # Examples come in the order of records, so earlier ones were dropped.
        while (requested := self._in_flight.popitem(last=False))[0] != position:
          self._possible[requested[1]] -= 1
        self._fruitless[requested[1]] = 0
