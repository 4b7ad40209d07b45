"""Mixtures of tasks, read by position like a task.

A hash of seed and position draws the task of a position, weighted by the rates.
Its record is the one that the task's own order has at that position. Both are
therefore pure functions of the position, and a run resumes anywhere; a task's
records come equally often, but not each once before any comes again.
"""

import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int, Int64

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.sources import RECORDS_PER_LOOKUP, RecordReader, hashes


def mixed(
  mixture: seqio.Mixture,
  positions: tf.data.Dataset,
  readers: Mapping[str, RecordReader],
  examples_of: Callable[[seqio.Task, tf.data.Dataset], tf.data.Dataset],
  *,
  seed: int,
) -> tf.data.Dataset:
  """Returns the examples at positions, each of the task that is drawn there.

  Raises:
    TaskError: The tasks have different features.
  """
  tasks = seqio.get_subtasks(mixture)
  limits = np.cumsum([mixture.get_rate(task) for task in tasks])
  kinds: dict[str, set[tuple[str, str, int | None]]] = {}

  def draw(batch: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    # The upper 53 bits are what a float64 in [0, 1) holds.
    drawn = (hashes(batch, seed=seed) >> np.uint64(11)) * 2.0**-53
    return np.searchsorted(limits[:-1] / limits[-1], drawn, side="right")

  def of_batch(batch: tf.Tensor) -> tf.data.Dataset:
    drawn = tf.numpy_function(draw, [batch], tf.int64, stateful=False)
    drawn = tf.ensure_shape(drawn, [None])
    # Of each task, a data set for each position: of an example, or of none.
    parts = []
    for number, task in enumerate(tasks):
      own = tf.data.Dataset.from_tensor_slices(batch[drawn == number])
      records = readers[task.name].records_at(own)
      one_by_one = records.map(tf.data.Dataset.from_tensors)
      parts.append(one_by_one.map(functools.partial(examples_of, task)))
      features = parts[-1].element_spec.element_spec.items()
      kinds[task.name] = {(n, x.dtype.name, x.shape.rank) for n, x in features}
    order = tf.data.Dataset.from_tensor_slices(drawn)
    chosen = tf.data.Dataset.choose_from_datasets(parts, order)
    return chosen.flat_map(lambda examples: examples)

  try:
    return positions.batch(RECORDS_PER_LOOKUP).flat_map(of_batch)
  finally:
    # TensorFlow's own error, if it gives any, names no feature.
    for (one, ours), (other, theirs) in itertools.pairwise(kinds.items()):
      if ours != theirs:
        raise TaskError(
          f"tasks of the mixture {mixture.name!r} differ in their features "
          f"(name, type, rank): {one} alone gives {sorted(ours - theirs)}, "
          f"{other} {sorted(theirs - ours)}"
        )
