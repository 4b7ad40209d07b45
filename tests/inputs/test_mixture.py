"""Mixtures: by rate, the same in every layout, resumable anywhere."""

import collections
import itertools

import numpy as np
import pytest
import seqio

from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.mixture import TaskOrder
from tests.inputs import numbers, tiny_corpus

B = 4
_GROUP = 1 << 16


@pytest.mark.parametrize(
  "rates", [[1], [1, 1], [3, 1], [0.7, 0.2, 0.1], [1e-9, 5, 1e-9]]
)
def test_each_task_reads_its_own_stream_in_order_and_by_rate(rates):
  order = TaskOrder(rates, seed=3)
  tasks, own = order.at(np.arange(2 * _GROUP))
  # Counted from the front, which takes all earlier positions.
  seen = collections.Counter()
  for task, number in zip(tasks.tolist(), own.tolist(), strict=True):
    assert number == seen[task]
    seen[task] += 1
  wanted = np.array(rates) / sum(rates) * 2 * _GROUP
  counts = [seen[task] for task in range(len(rates))]
  np.testing.assert_allclose(counts, wanted, atol=4)
  for task in range(len(rates)):
    assert seen[task] >= 2
    for number in (0, seen[task] // 2, seen[task] - 1):
      place = order.position_of(task, number)
      assert (tasks[place], own[place]) == (task, number)


def test_the_order_of_tasks_depends_on_the_seed_and_on_no_earlier_call():
  positions = np.array([7 * _GROUP + 5, 3, _GROUP - 1, 2])
  whole = TaskOrder([2, 1], seed=1)
  at_once = whole.at(positions)
  for i, position in enumerate(positions):
    task, own = TaskOrder([2, 1], seed=1).at(np.array([position]))
    assert (task[0], own[0]) == (at_once[0][i], at_once[1][i])
  other = TaskOrder([2, 1], seed=2).at(np.arange(99))[0]
  assert not np.array_equal(other, whole.at(np.arange(99))[0])


@pytest.fixture
def mixed(new_tasks):
  """Three parts of numbers below 9, and one of 100 to 139, a third dropped."""

  def is_kept(number):
    return number % 3 != 0

  numbers.add_task(numbers.NumbersSource(9), is_kept, name="few")
  numbers.add_task(numbers.NumbersSource(40, first=100), is_kept, name="many")
  seqio.MixtureRegistry.add("mixed", [("few", 3), ("many", 1)])
  yield
  seqio.MixtureRegistry.remove("mixed")


def _config(tiny, task="mixed", **fields):
  return tiny_corpus.config(task, tiny, **{"batch_size": B, **fields})


def _some(tiny, num, **settings):
  stream = BatchStream(_config(tiny), **settings)
  batches = list(itertools.islice(stream, num))
  stream.close()
  return batches


def _joined(batches):
  return {
    name: np.stack([batch.arrays[name] for batch in batches])
    for name in ("number", "draw")
  } | {"position": np.stack([batch.positions for batch in batches])}


@pytest.mark.usefixtures("mixed")
def test_rows_join_to_one_stream_in_any_layout_and_resume_anywhere(tiny):
  batches = _some(tiny, 40)
  whole = _joined(batches)
  rows = [[] for _ in range(B)]
  for example in itertools.islice(ExampleStream(_config(tiny)), 50 * B):
    rows[int(example["position"]) % B].append(example)
  for name, values in whole.items():
    expected = [[example[name] for example in row[:40]] for row in rows]
    np.testing.assert_array_equal(values.T, expected, err_msg=name)
  positions = batches[16].next_positions
  for own in ([0, 1], [2, 3]):
    rest = _joined(_some(tiny, 9, rows=np.array(own), positions=positions[own]))
    for name, values in rest.items():
      np.testing.assert_array_equal(values, whole[name][17:26, own])


@pytest.mark.usefixtures("mixed")
def test_each_task_has_epochs_of_its_own(tiny):
  stream = itertools.islice(ExampleStream(_config(tiny)), 2000)
  found = [int(example["number"]) for example in stream]
  few = [number for number in found if number < 100]
  assert len(few) / len(found) == pytest.approx(0.75, abs=0.03)
  # Six of the nine are kept, and all of them come before any comes again.
  epochs = np.reshape(few[: 6 * 50], (50, 6))
  np.testing.assert_array_equal(np.sort(epochs), [[1, 2, 4, 5, 7, 8]] * 50)
  assert len({tuple(epoch) for epoch in epochs.tolist()}) > 40
  many = [number for number in found if number >= 100][:27]
  assert sorted(many) == [n for n in range(100, 140) if n % 3]


@pytest.mark.usefixtures("new_tasks")
def test_tasks_of_the_project_mix(tiny):
  """Blocks and texts, through a mixture inside another."""
  names = ["masked_salient_spans", "masked_random_tokens", "open_qa"]
  masks, both, questions = "masks", "both", "questions"
  seqio.MixtureRegistry.add(masks, names[:2], default_rate=1)
  seqio.MixtureRegistry.add(both, [(masks, 1), ("masked_random_spans", 1)])
  seqio.MixtureRegistry.add(questions, [("open_qa", 1), ("open_qa_regex", 2)])
  try:
    for name in (both, questions):
      stream = BatchStream(_config(tiny, name, batch_size=8))
      batches = list(itertools.islice(stream, 12))
      stream.close()
      if name == both:
        num_masks = [(b.arrays["mask_weights"] > 0).sum(1) for b in batches]
        assert np.min(num_masks) == 1
      else:
        kinds = collections.Counter(
          kind for batch in batches for kind in batch.answer_kinds
        )
        assert kinds["regex"] / 96 == pytest.approx(2 / 3, abs=0.1)
        assert kinds.total() == 96
  finally:
    for name in (masks, both, questions):
      seqio.MixtureRegistry.remove(name)


def _refused(name, tasks, tiny, match):
  seqio.MixtureRegistry.add(name, tasks, default_rate=1)
  try:
    with pytest.raises(TaskError, match=match):
      next(BatchStream(_config(tiny, name)))
  finally:
    seqio.MixtureRegistry.remove(name)


@pytest.mark.usefixtures("new_tasks")
def test_what_cannot_be_mixed_is_refused(tiny, tmp_path):
  path = tmp_path / "lines.txt"
  path.write_text("1\n2\n")
  task = seqio.TaskRegistry.get("open_qa")
  seqio.TaskRegistry.add(
    "lines",
    source=seqio.TextLineDataSource({"train": str(path)}),
    output_features=task.output_features,
  )
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
  _refused("front", ["open_qa", "lines"], tiny, r"'lines'.*RandomAccessSource")
  _refused(
    "unlike",
    ["open_qa", "other"],
    tiny,
    "'answer_tokens' is int32, rank 2 in open_qa, absent in other",
  )
