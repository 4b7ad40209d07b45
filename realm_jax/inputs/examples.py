"""The examples of a task, as a pure function of task, seed and position.

They are the same however many processes read them and wherever they start: the
order of records is computed from the seed, each record has the seed of its
position, and an example names the position that it was made at, whatever
preprocessors filter out.
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

# Records that may give no example before an endless stream is an error.
_FRUITLESS_RECORDS = 20_000


def _import_tasks(module_name: str) -> None:
  """Imports a module, and each module in it if it is a package."""
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    # Not if a module that exists lacks a library of its own.
    if f"{module_name}.".startswith(f"{error.name}."):
      raise TaskError(
        f"no module {module_name!r} to find tasks in; is its folder on "
        "PYTHONPATH?"
      ) from error
    raise
  for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
    importlib.import_module(f"{module_name}.{found.name}")


def find_task(
  name: str, task_modules: Sequence[str] = ("realm_jax.tasks",)
) -> seqio.Task | seqio.Mixture:
  """Returns a seqio task or mixture, once the modules are imported.

  Raises:
    TaskError: There is no such task; the message lists similar names.
  """
  left = [one for one in task_modules if isinstance(one, NotImported)]
  for module_name in task_modules:
    if module_name not in left:
      _import_tasks(module_name)
  known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
  if name in known:
    return seqio.get_mixture_or_task(name)
  if left:
    raise TaskError(
      f"no task named {name!r} here. The run has tasks in {', '.join(left)}, "
      "and nothing is imported because a MODEL_DIR names it; give "
      f"--modules={','.join(left)} if you trust that"
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

  Row i of every global batch of size B is a stream of its own: the positions i,
  i + B, i + 2B, … without the records that the task's preprocessors drop. A
  process therefore reads no record of another process's rows, and the order of
  the data is the same in every layout.

  Iterating, once, yields dictionaries of numpy arrays, unpadded: the task's
  features and "position". A later stream resumes a row after an example at its
  position + B. Whenever tf.data has room for more records, the rows that have
  the fewest examples, received or still possible, get their next position. So
  a row that drops more is read more, and the others do not pile up examples.

  Args:
    config: Data of the run; its lengths are the largest that features have.
    positions: Stream position of the next record of each of these rows, in
      rising order of the rows; None for the start of all rows.
    shuffle: Whether each epoch has its own order, or that of the source.
    repeat: Whether epochs follow each other without end.

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
    # tf.data's threads request positions while the consumer's notes examples.
    self._lock = threading.Lock()
    if positions is None:
      positions = np.arange(config.batch_size)
    self._next = positions.astype(np.int64)
    # Of each row: its records that gave an example, or still may; and those
    # that have been requested since its last example.
    self._possible = np.zeros(len(positions), np.int64)
    self._fruitless = np.zeros(len(positions), np.int64)
    # Requested positions, in order, of which nothing is known, and their rows.
    self._in_flight = collections.OrderedDict[int, int]()
    # Examples that tf.data has made, of which a chunk is received at once.
    self._num_made = tf.Variable(tf.zeros((), tf.int64))
    self._chunk_size = min(len(positions), RECORDS_PER_LOOKUP)
    # Exception of a request, since tf.data keeps only its text.
    self._error: TaskError | None = None

  def _open(self, task: seqio.Task, *, shuffle: bool) -> RecordReader:
    """Opens the records of a task, and logs what is wrong with them."""
    source, split, seed = task.source, self._config.split, self._config.seed
    # One that has none reads files, and says which.
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
      # Tasks have orders of their own; records, the seeds of the run.
      seed += zlib.crc32(task.name.encode()) << 32
    reader = RecordReader(source, split, seed=seed, shuffle=shuffle)
    for problem in reader.problems(self._config.lengths):
      logging.warning("task %r, split %r: %s", task.name, split, problem)
    return reader

  @property
  def spec(self) -> Mapping[str, FeatureSpec]:
    """The shapes and types of the examples; raises as iterating does."""
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
    return requests.take_while(lambda found: tf.size(found) > 0).unbatch()

  @functools.cached_property
  def _chunks(self) -> tf.data.Dataset:
    """Chunks of the examples, which cost less to receive than single ones."""
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

    A hash of seed and position draws the task, weighted by the rates. Its
    record is the one that the task's own order has at that position, so that a
    task's records come equally often, but not each once before any comes again.
    """
    tasks, seed = seqio.get_subtasks(mixture), self._config.seed
    limits = np.cumsum([mixture.get_rate(task) for task in tasks])

    def draw(batch: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
      # The upper 53 bits are what a float64 in [0, 1) holds.
      drawn = (hashes(batch, seed=seed) >> np.uint64(11)) * 2.0**-53
      return np.searchsorted(limits[:-1] / limits[-1], drawn, side="right")

    @tf.autograph.experimental.do_not_convert
    def of_batch(batch: tf.Tensor) -> tf.data.Dataset:
      drawn = tf.numpy_function(draw, [batch], tf.int64, stateful=False)
      drawn = tf.ensure_shape(drawn, [None])
      parts, kinds = [], {}
      for number, task in enumerate(tasks):
        own = tf.data.Dataset.from_tensor_slices(batch[drawn == number])
        records = self._readers[task.name].records_at(own)
        parts.append(self._examples_of(task, records))
        kinds[task.name] = {
          (n, x.dtype.name, x.shape.rank)
          for n, x in parts[-1].element_spec.items()
        }
      # TensorFlow's own error, if it gives any, names no feature.
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

      # Of a batch of positions there is one chunk at most.
      return self._chunked(whole, RECORDS_PER_LOOKUP).map(in_order)

    return positions.batch(RECORDS_PER_LOOKUP).flat_map(of_batch)

  def _examples_of(
    self, task: seqio.Task, records: tf.data.Dataset
  ) -> tf.data.Dataset:
    """Returns what one task makes of its records."""
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
      TaskError: The task does not hand on the positions of its records, or not
        once and in order; the tasks of a mixture have different features; or
        the stream is endless, and no record gives an example.
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

    It never waits, so that no thread hangs when the stream is closed.
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
    """Raises `TaskError` if an endless stream has none among many records."""
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
    """Notes the positions of examples that have been made.

    Raises:
      TaskError: One is repeated, or not in the order of the records.
    """
    with self._lock:
      for position in positions:
        if position not in self._in_flight:
          raise TaskError(
            f"the task gives position {position} twice or out of order; its "
            "preprocessors may drop records, but not shuffle them nor make "
            "several examples of one"
          )
        # Examples come in the order of records, so those before were dropped.
        while (found := self._in_flight.popitem(last=False))[0] != position:
          self._possible[found[1]] -= 1
        self._fruitless[found[1]] = 0
