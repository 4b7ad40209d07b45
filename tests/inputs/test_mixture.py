"""Mixtures: by rate, the same in every layout, resumable anywhere."""

import collections
import contextlib
import itertools

import numpy as np
import pytest
import seqio

from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from tests.inputs import numbers, tiny_corpus
from tests.inputs.numbers import joined, some

B = 4


@contextlib.contextmanager
def _mixture(name, tasks, default_rate=None):
  seqio.MixtureRegistry.add(name, tasks, default_rate=default_rate)
  try:
    yield
  finally:
    seqio.MixtureRegistry.remove(name)


@pytest.fixture
def mixed(new_tasks, tmp_path):
  """Three parts of numbers below 9, and one of 100 to 139, a third dropped."""
  numbers.add_task(numbers.lines(tmp_path / "lines.txt", 9), name="few")
  numbers.add_task(numbers.Numbers(40, first=100), name="many")
  with _mixture("mixed", [("few", 3), ("many", 1)]):
    yield


def _config(tiny, task="mixed", **fields):
  return tiny_corpus.config(task, tiny, **{"batch_size": B, **fields})


@pytest.mark.slow
@pytest.mark.usefixtures("mixed")
def test_rows_join_to_one_stream_in_any_layout_and_resume_anywhere(tiny):
  config = _config(tiny)
  batches = some(config, 20)
  whole = joined(batches)
  rows = [[] for _ in range(B)]
  for example in itertools.islice(ExampleStream(config), 40 * B):
    rows[int(example["position"]) % B].append(example)
  for name in ("position", "number", "draw"):
    expected = [[example[name] for example in row[:20]] for row in rows]
    np.testing.assert_array_equal(whole[name].T, expected, err_msg=name)
  positions = batches[9].next_positions
  for own in ([0, 1], [2, 3]):
    part = some(config, 9, rows=np.array(own), positions=positions[own])
    for name, values in joined(part).items():
      np.testing.assert_array_equal(values, whole[name][10:19, own])


@pytest.mark.slow
@pytest.mark.usefixtures("mixed")
def test_tasks_come_by_rate_and_their_records_equally_often(tiny):
  found = collections.Counter(
    int(example["number"])
    for example in itertools.islice(ExampleStream(_config(tiny)), 1000)
  )
  few = {number: n for number, n in found.items() if number < 100}
  assert sum(few.values()) == pytest.approx(750, abs=69)  # 5 sigma.
  assert sorted(few) == [1, 2, 4, 5, 7, 8]
  assert max(abs(n - 125) for n in few.values()) < 5 * 125**0.5
  assert sorted(found.keys() - few.keys()) == [
    number for number in range(100, 140) if number % 3
  ]


@pytest.mark.slow
@pytest.mark.usefixtures("new_tasks")
def test_what_cannot_be_mixed_is_refused(tiny):
  task = seqio.TaskRegistry.get("open_qa")
  seqio.TaskRegistry.add(
    "other",
    source=task.source,
    preprocessors=[
      *task.preprocessors,
      seqio.map_over_dataset(
        lambda e: {n: v for n, v in e.items() if n != "answer_tokens"}
      ),
    ],
    output_features=task.output_features,
  )
  with _mixture("unlike", ["open_qa", "other"], default_rate=1):
    with pytest.raises(TaskError, match=r"open_qa alone gives.*answer_tokens"):
      next(BatchStream(_config(tiny, "unlike")))
    with pytest.raises(TaskError, match=r"no end.*open_qa, other"):
      BatchStream(_config(tiny, "unlike"), repeat=False)
