"""Rows of the batch as streams of their own, in any layout of processes."""

import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from tests.inputs import numbers, tiny_corpus

B = 8


@pytest.fixture
def add_numbers(new_tasks):
  """`add_numbers(size, keep)`: adds a task, and returns its source."""

  def add(size, keep=lambda number: True):
    source = numbers.NumbersSource(size)
    numbers.add_task(source, keep)
    return source

  return add


@pytest.fixture
def add_lines(tmp_path, new_tasks):
  """As `add_numbers`, of a file that is read from its front."""

  def add(size, keep=lambda number: True):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(size)))

    @seqio.map_over_dataset
    def parse(record):
      number = tf.strings.to_number(record.pop("text"), tf.int64)
      return {"number": number, **record}

    source = seqio.FileDataSource(
      lambda files: tf.data.TextLineDataset(files).map(lambda t: {"text": t}),
      {"train": str(path)},
    )
    numbers.add_task(source, keep, preprocessors=[parse], buffer=8)

  return add


@pytest.fixture(params=["add_numbers", "add_lines"])
def add(request):
  """Adds a task with random access to its records, and one without it."""
  return request.getfixturevalue(request.param)


def _config(tiny, batch_size=B, **fields):
  return tiny_corpus.config("numbers", tiny, batch_size=batch_size, **fields)


def _stream(tiny, *, batch_size=B, fields=None, **arguments):
  return BatchStream(_config(tiny, batch_size, **fields or {}), **arguments)


def _some(tiny, num, **settings):
  stream = _stream(tiny, **settings)
  batches = list(itertools.islice(stream, num))
  stream.close()
  return batches


def _joined(batches):
  """The position, number and draw of all examples, a row for each batch."""
  return {
    "position": np.stack([batch.positions for batch in batches]),
    "number": np.stack([batch.arrays["number"] for batch in batches]),
    "draw": np.stack([batch.arrays["draw"] for batch in batches]),
    "num_texts": np.stack(
      [(batch.host["texts"] == b"text").sum(1) for batch in batches]
    ),
  }


def _assert_same(found, expected):
  for name, values in _joined(found).items():
    np.testing.assert_array_equal(values, expected[name], err_msg=name)


def _shares(count, batch_size=B):
  return np.arange(batch_size).reshape(count, -1)


def _thirds(number):
  return number % 3 != 0


def test_each_row_has_its_share_of_one_flat_stream(add, tiny):
  add(29, _thirds)
  batches = _some(tiny, 12)
  rows = [[] for _ in range(B)]
  for example in itertools.islice(ExampleStream(_config(tiny)), 15 * B):
    rows[int(example["position"]) % B].append(example)
  for name, values in _joined(batches).items():
    if name != "num_texts":
      expected = [[e[name] for e in row[:12]] for row in rows]
      np.testing.assert_array_equal(values.T, expected, err_msg=name)
  np.testing.assert_array_equal(
    _joined(batches)["num_texts"], _joined(batches)["number"] % 3
  )


def test_processes_join_to_the_whole_however_they_read_ahead(
  add, tiny, monkeypatch
):
  add(29, _thirds)
  whole = _joined(_some(tiny, 12))
  for count, per_lookup, per_block, ahead in (
    (2, 1, 1, 0),
    (4, 7, 3, 5),
    (1, 64, 2, 9),
  ):
    lookups = "realm_jax.inputs.sources._RECORDS_PER_LOOKUP"
    monkeypatch.setattr(lookups, per_lookup)
    blocks = "realm_jax.inputs.batches._EXAMPLES_PER_BLOCK"
    monkeypatch.setattr(blocks, per_block)
    for rows in _shares(count):
      part = _some(tiny, 12, rows=rows, fields={"batches_ahead": ahead})
      _assert_same(part, {name: x[:, rows] for name, x in whole.items()})


def test_a_stream_goes_on_from_the_next_positions_in_another_layout(add, tiny):
  add(29, _thirds)
  before = _some(tiny, 7)
  positions = before[-1].next_positions
  np.testing.assert_array_equal(positions, before[-1].positions + B)
  # In epochs of their own, and not all in the same one.
  assert positions.min() > 29
  assert len(set(positions // B)) > 1
  rest = _joined(_some(tiny, 13))
  for rows in _shares(2):
    part = _some(tiny, 6, rows=rows, positions=positions[rows])
    _assert_same(part, {name: x[7:, rows] for name, x in rest.items()})


def test_rows_that_run_out_give_filler(add, tiny):
  add(10, _thirds)  # Without 0, 3, 6 and 9.
  settings = {"batch_size": 4, "shuffle": False, "repeat": False}
  batches = _some(tiny, 9, **settings)
  positions = [batch.positions.tolist() for batch in batches]
  assert positions == [[4, 1, 2, 7], [8, 5, -1, -1]]
  assert batches[1].is_real.tolist() == [True, True, False, False]
  # Each repeats the last of its own row.
  assert batches[1].arrays["number"].tolist() == [8, 5, 2, 7]
  assert batches[1].next_positions.tolist() == [12, 9, 6, 11]
  # A process ends as soon as all of its own rows have run out.
  parts = [_some(tiny, 9, rows=rows, **settings) for rows in _shares(2, 4)]
  assert [len(part) for part in parts] == [2, 1]


def test_a_process_reads_its_own_rows_and_few_more_than_it_uses(
  add_numbers, tiny
):
  """What is read ahead is `batches_ahead` batches and tf.data's buffers."""
  batch_size, num_batches, count = 64, 30, 4
  source = add_numbers(1_000_000, _thirds)
  for rows in _shares(count, batch_size):
    stream = _stream(tiny, batch_size=batch_size, rows=rows, shuffle=False)
    batches = list(itertools.islice(stream, num_batches))
    # In this order a record's number is its position. Each is read once.
    read = np.array(source.opened.read)
    stream.close()
    assert set(read % batch_size) == set(rows)
    assert len(set(read)) == len(read)
    num_used = ((batches[-1].next_positions - rows) // batch_size).sum()
    assert num_used <= len(read) <= num_used + 512


def test_a_row_without_examples_is_an_error(add, tiny, monkeypatch):
  monkeypatch.setattr("realm_jax.inputs.examples._FRUITLESS_RECORDS", 300)
  add(8, lambda number: number % 4 != 0)
  # In the order of the source, row 0 has only numbers that are dropped.
  with pytest.raises(TaskError, match="keeps none of 300 records"):
    _some(tiny, 1, batch_size=4, shuffle=False)
  # In orders of their own, epochs have something for each row.
  assert len(_some(tiny, 3, batch_size=4)) == 3


def test_no_example_at_all_is_an_error(add, tiny, monkeypatch):
  monkeypatch.setattr("realm_jax.inputs.examples._FRUITLESS_RECORDS", 300)
  add(8, lambda number: number < 0)
  with pytest.raises(TaskError, match="'numbers' keeps none of 300 records"):
    _some(tiny, 1)
  assert _some(tiny, 1, repeat=False) == []


def test_streams_are_closed_at_any_time(add, tiny):
  add(29, _thirds)
  for num in (0, 1, 5):
    stream = _stream(tiny, fields={"batches_ahead": 20})
    assert len(list(itertools.islice(stream, num))) == num
    stream.close()
    assert list(stream) == []


def test_a_task_that_shuffles_is_refused(add, tiny):
  add(29)
  task = seqio.TaskRegistry.get("numbers")
  seqio.TaskRegistry.remove("numbers")
  numbers.add_task(
    task.source,
    _thirds,
    preprocessors=[
      *task.preprocessors[:-2],
      lambda records: records.shuffle(9, seed=1),
    ],
  )
  with pytest.raises(TaskError, match="twice or out of order"):
    _some(tiny, 9)


def test_positions_of_other_rows_are_refused(add_numbers, tiny):
  add_numbers(29)
  with pytest.raises(
    ValueError, match=r"positions \[0 1\] are not of the rows"
  ):
    _stream(tiny, rows=np.array([1, 2]), positions=np.arange(2))
