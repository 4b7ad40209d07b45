"""Sources: their order, and those that are read into memory."""

import hypothesis
import numpy as np
import pytest
import seqio
import tensorflow as tf
from hypothesis import strategies as st

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.sources import record_indices
from tests.inputs import numbers, tiny_corpus


def _examples(tiny, task="numbers", **arguments):
  return ExampleStream(tiny_corpus.config(task, tiny), **arguments)


@hypothesis.given(
  size=st.integers(1, 700),
  seed=st.integers(-(2**63), 2**64),
  epoch=st.integers(0, 2**30),
)
def test_every_epoch_reads_each_record_once(size, seed, epoch):
  positions = epoch * size + np.arange(size)
  indices = record_indices(positions, size=size, seed=seed)
  np.testing.assert_array_equal(np.sort(indices), np.arange(size))


def _lines_of(num):
  return lambda folder: numbers.lines(folder / "lines.txt", num)


def _function(folder):
  del folder
  return seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.range(3),
    splits=["train"],
  )


@pytest.mark.parametrize(
  ("source", "message"),
  [
    (_lines_of(0), "no record in split 'train'"),
    (_lines_of(6), r"more than 5 records.*build a corpus"),
    (_function, r"cannot be resumed.*RandomAccessSource"),
  ],
)
def test_what_cannot_be_kept_in_memory_is_refused(
  source, message, tiny, tmp_path, new_tasks, monkeypatch
):
  monkeypatch.setattr("realm_jax.inputs.sources._MAX_IN_MEMORY", 5)
  numbers.add_task(source(tmp_path))
  with pytest.raises(TaskError, match=message):
    _examples(tiny)


class _Breaking(numbers.Numbers):
  """A source whose storage fails at its tenth record."""

  def lookup(self, indices):
    if 10 in indices:
      raise OSError("disk 3 is gone")
    return super().lookup(indices)


@pytest.mark.usefixtures("new_tasks")
def test_an_error_of_the_source_arrives_as_itself(tiny, monkeypatch):
  monkeypatch.setattr("realm_jax.inputs.sources.RECORDS_PER_LOOKUP", 4)
  numbers.add_task(_Breaking(100), keep=lambda number: number >= 0)
  read = []
  with pytest.raises(OSError, match="disk 3 is gone"):
    for example in _examples(tiny, shuffle=False):
      read.append(int(example["number"]))
  assert read == list(range(8))
