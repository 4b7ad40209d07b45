"""Mixtures of tasks, read by position like a task.

Positions stand in groups of 65,536. In each group a task has as many positions
as its rate says, those of the group's smallest hashes of seed and position, the
next task has those of the hashes that follow, and so on. The n-th position of a
task in the stream has the n-th record of the task's own stream, so which task
and record a position has follows from seed and position alone; and every task
goes through its records in epochs of its own, each record once in each.
"""

import collections
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Int, Int64

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.sources import (
  PositionReader,
  RecordReader,
  position_hashes,
)

_GROUP_SIZE = 1 << 16
# Rows of a batch drop records at different rates, and so drift apart a little.
_GROUPS_KEPT = 4


class Shares(NamedTuple):
  """Whose each position of a group is, and which of its own it is there."""

  task: Int64[np.ndarray, " g"]
  number: Int64[np.ndarray, " g"]


class TaskOrder:
  """Which task each position of a mixture has.

  Args:
    rates: Rate of each task, in any unit. A group holds them to 1 in 65,536.
    seed: Seed of the order.
  """

  def __init__(self, rates: Sequence[float], *, seed: int):
    shares = np.asarray(rates, np.float64)
    if not np.all(np.isfinite(shares) & (shares > 0)):
      raise TaskError(f"rates of a mixture are {list(rates)}; want all above 0")
    exact = shares / shares.sum() * _GROUP_SIZE
    self._sizes = np.maximum(np.floor(exact).astype(np.int64), 1)
    # What rounding leaves goes to the largest fractions.
    missing = _GROUP_SIZE - int(self._sizes.sum())
    by_fraction = np.argsort(np.floor(exact) - exact, kind="stable")
    if missing >= 0:
      self._sizes[by_fraction[:missing]] += 1
    else:  # Many tiny rates were raised to 1.
      self._sizes[np.argmax(self._sizes)] += missing
    self._seed = seed
    self._groups = collections.OrderedDict[int, Shares]()

  def _group(self, group: int) -> Shares:
    if group in self._groups:
      self._groups.move_to_end(group)
      return self._groups[group]
    positions = group * _GROUP_SIZE + np.arange(_GROUP_SIZE)
    hashes = position_hashes(positions, seed=self._seed)
    task = np.empty(_GROUP_SIZE, np.int64)
    task[np.argsort(hashes, kind="stable")] = np.repeat(
      np.arange(len(self._sizes)), self._sizes
    )
    number = np.empty(_GROUP_SIZE, np.int64)
    for index, size in enumerate(self._sizes.tolist()):
      number[task == index] = np.arange(size)
    self._groups[group] = Shares(task, number)
    if len(self._groups) > _GROUPS_KEPT:
      self._groups.popitem(last=False)
    return self._groups[group]

  def at(
    self, positions: Int[np.ndarray, " n"]
  ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Returns the task at each position, and the position in its own stream."""
    groups, within = np.divmod(np.asarray(positions, np.int64), _GROUP_SIZE)
    tasks, own = np.empty_like(within), np.empty_like(within)
    for group in np.unique(groups).tolist():
      here = groups == group
      shares = self._group(group)
      tasks[here] = shares.task[within[here]]
      own[here] = shares.number[within[here]]
    return tasks, own + groups * self._sizes[tasks]

  def position_of(self, task: int, own_position: int) -> int:
    """Returns the position at which a task reads one of its own stream."""
    group, number = divmod(own_position, int(self._sizes[task]))
    found = np.flatnonzero(self._group(group).task == task)
    return group * _GROUP_SIZE + int(found[number])


class MixtureReader(PositionReader):
  """Reads the records of a mixture.

  A record has its "task", a number, and "records", one for each task, of which
  only that task's has anything. An epoch ends before the first position whose
  task has had all its records, as with seqio's own mixtures.

  Args:
    readers: Reader of each task, by the task's name, in the order of numbers.
    rates: Rate of each task.
    seed: Seed of the order of tasks, and of the records' draws.
  """

  def __init__(
    self,
    readers: Mapping[str, RecordReader],
    rates: Sequence[float],
    *,
    seed: int,
  ):
    super().__init__(seed=seed)
    self._names = tuple(readers)
    self._readers = tuple(readers.values())
    self._order = TaskOrder(rates, seed=seed)
    self.num_records = min(
      self._order.position_of(task, reader.num_records)
      for task, reader in enumerate(self._readers)
    )

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    return [
      f"{name}: {problem}"
      for name, reader in zip(self._names, self._readers, strict=True)
      for problem in reader.problems(lengths)
    ]

  def _types(self) -> list[tf.DType]:
    types = [tf.int32]
    for reader in self._readers:
      types += [tf.int64, *reader.layout.types]
    return types

  def _read(self, positions: Int[np.ndarray, " n"]) -> list[np.ndarray]:
    """Returns the tasks; then of each task, its record's places and columns."""
    tasks, own = self._order.at(positions)
    arrays = [tasks.astype(np.int32)]
    for task, reader in enumerate(self._readers):
      is_own = tasks == task
      columns = reader.columns(own[is_own]) if is_own.any() else None
      # The blank record comes first.
      places = np.where(is_own, np.cumsum(is_own), 0)
      arrays += [places, *reader.layout.flatten_after_blank(columns)]
    return arrays

  def _record(
    self, tensors: Sequence[tf.Tensor], index: Int[tf.Tensor, ""]
  ) -> dict[str, Any]:
    records, start = [], 1
    for reader in self._readers:
      place = tf.ensure_shape(tensors[start][index], ())
      limit = start + 1 + len(reader.layout.types)
      records.append(reader.layout.record(tensors[start + 1 : limit], place))
      start = limit
    task = tf.ensure_shape(tensors[0][index], ())
    return {"task": task, "records": tuple(records)}


def order_seed(seed: int, task_name: str) -> int:
  """Returns the seed of a task's own order, so that tasks' orders differ."""
  return seed + (zlib.crc32(task_name.encode()) << 32)


def require_same_features(
  name: str, features: Mapping[str, Mapping[str, tf.TensorSpec]]
) -> None:
  """Raises `TaskError` unless all tasks of a mixture have the same features.

  Args:
    name: Name of the mixture.
    features: Features of each task, by the task's name.
  """
  kinds = {
    task: {
      feature: f"{spec.dtype.name}, rank {spec.shape.rank}"
      for feature, spec in specs.items()
    }
    for task, specs in features.items()
  }
  first, expected = next(iter(kinds.items()), ("", {}))
  for task, found in kinds.items():
    differing = sorted(
      feature
      for feature in expected.keys() | found.keys()
      if expected.get(feature) != found.get(feature)
    )
    if differing:
      raise TaskError(
        f"the tasks of the mixture {name!r} have different features: "
        + "; ".join(
          f"{feature!r} is {expected.get(feature, 'absent')} in {first}, "
          f"{found.get(feature, 'absent')} in {task}"
          for feature in differing
        )
      )
