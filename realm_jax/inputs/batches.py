"""Batches of fixed shapes, with one example of every row.

A process reads only its own rows of the global batch (see
`realm_jax.inputs.examples.ExampleStream`).
"""

import collections
import contextlib
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from realm_jax.inputs.batch import (
  FILLER,
  Batch,
  Example,
  FeatureSpec,
  TaskError,
  padded,
)
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.question_files import TASKS, QuestionExamples

if TYPE_CHECKING:
  from realm_jax.inputs.examples import ExampleStream


def stream_batches(
  config: DataConfig,
  *,
  positions: Int64[np.ndarray, " b"] | None = None,
  shuffle: bool = True,
  repeat: bool = True,
) -> Generator[Batch, None, None]:
  """Returns the batches of a task, whose examples are prepared ahead.

  Each batch has one example for every row of this process. Without `repeat`,
  rows that have run out of examples get filler, copies of a real example; the
  batches end when all rows of this process have run out. Close the generator to
  stop the threads that prepare examples.

  Args:
    config: Data of the run, with the batch size over all processes.
    positions: Stream positions at which the rows of this process continue, in
      rising order of the rows: `next_positions` of an earlier batch, or at the
      start the numbers of the rows. None is the start of all rows.
    shuffle, repeat: As in `ExampleStream`.

  Raises:
    TaskError: The task does not exist or cannot be read.
  """
  if positions is None:
    positions = np.arange(config.batch_size)
  is_plain = config.task in TASKS and "realm_jax.tasks" in config.task_modules
  if is_plain and not (shuffle or repeat):
    stream = QuestionExamples(config, positions)
  else:
    # Needs seqio, of the extra `train`.
    from realm_jax.inputs.examples import ExampleStream

    stream = ExampleStream(
      config, positions=positions, shuffle=shuffle, repeat=repeat
    )
  return _one_ahead(_batches(stream, config, positions))


def _one_ahead(
  batches: Generator[Batch, None, None],
) -> Generator[Batch, None, None]:
  """Yields batches; a thread joins the examples of the next one meanwhile."""
  with (
    contextlib.closing(batches),
    ThreadPoolExecutor(1, thread_name_prefix="examples") as thread,
  ):
    following = thread.submit(next, batches, None)
    while (batch := following.result()) is not None:
      following = thread.submit(next, batches, None)
      yield batch


def _batches(
  stream: "ExampleStream | QuestionExamples",
  config: DataConfig,
  positions: Int64[np.ndarray, " b"],
) -> Generator[Batch, None, None]:
  size = config.batch_size
  queues = {
    row: collections.deque[Example]() for row in (positions % size).tolist()
  }
  used: list[Example | None] = [None] * len(queues)
  with contextlib.closing(iter(stream)) as examples:
    while True:
      while not all(queues.values()) and (example := next(examples, None)):
        queues[int(example["position"]) % size].append(example)
      is_real = np.array([bool(queue) for queue in queues.values()])
      if not is_real.any():
        return
      for place, queue in enumerate(queues.values()):
        if queue:
          used[place] = queue.popleft()
      some = used[int(np.argmax(is_real))]
      assert some is not None
      arrays, host = _joined([one or some for one in used], stream.spec, config)
      current = arrays.pop("position")
      positions = np.where(is_real, current + size, positions)
      yield Batch(arrays, host, np.where(is_real, current, FILLER), positions)


def _joined(
  examples: Sequence[Example],
  spec: Mapping[str, FeatureSpec],
  config: DataConfig,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """Returns the arrays of a batch, and the features that stay on the host."""
  arrays, host = {}, {}
  for name, feature in sorted(spec.items()):
    values = [example[name] for example in examples]
    shape = [*feature.shape]
    if shape and shape[0] is None:
      longest = max(np.shape(value)[0] for value in values)
      shape[0] = limit = config.lengths.get(name)
      if limit is not None and longest > limit:
        raise TaskError(
          f"task {config.task!r} gives a feature {name!r} of length {longest}, "
          f"and {limit} is its limit; raise it (QUERY_LENGTH, BLOCK_LENGTH, "
          "MAX_MASKS or OTHER_LENGTHS), or let a preprocessor cut the feature"
        )
    is_of_host = None in shape or feature.dtype is object
    features = host if is_of_host else arrays
    features[name] = padded(values, shape, feature.dtype)
  return arrays, host
