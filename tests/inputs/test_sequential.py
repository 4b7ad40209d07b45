"""Sources read from the front resume as those with random access do."""

import itertools

import pytest
import seqio
import tensorflow as tf

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.features import plain_feature
from tests.inputs import tiny_corpus


@seqio.map_over_dataset
def _noisy(record):
  """The line's number, and a draw from the record's seed."""
  return {
    "number": tf.strings.to_number(record["line"], tf.int64),
    "draw": tf.random.stateless_uniform((), record["seed"]),
    "position": record["position"],
  }


@pytest.fixture
def lines(tmp_path, new_tasks):
  """A task over 30 lines in two files, of which a third is dropped."""
  for index in range(2):
    numbers = range(15 * index, 15 * index + 15)
    (tmp_path / f"{index}.txt").write_text("".join(f"{n}\n" for n in numbers))

  @seqio.map_over_dataset
  def name_line(record):
    return {"line": record.pop("text"), **record}

  seqio.TaskRegistry.add(
    "lines",
    source=seqio.FileDataSource(
      lambda files: tf.data.TextLineDataset(files).map(lambda t: {"text": t}),
      {"train": str(tmp_path / "*.txt")},
    ),
    preprocessors=[
      name_line,
      _noisy,
      lambda examples: examples.filter(lambda e: e["number"] % 3 != 0),
    ],
    output_features={"number": plain_feature(tf.int64, rank=0)},
    shuffle_buffer_size=8,
  )


def _stream(tiny, *, task="lines", **arguments):
  return ExampleStream(tiny_corpus.config(task, tiny), **arguments)


@pytest.mark.usefixtures("lines")
def test_a_stream_resumes_after_any_example_of_any_epoch(tiny):
  whole = list(itertools.islice(_stream(tiny), 70))
  for cut in (19, 45):
    start = int(whole[cut]["position"]) + 1
    rest = itertools.islice(_stream(tiny, start_position=start), 69 - cut)
    for one, other in zip(rest, whole[cut + 1 :], strict=True):
      assert one == other


@pytest.mark.usefixtures("lines")
def test_one_epoch_in_the_order_of_the_files_ends(tiny):
  settings = {"shuffle": False, "repeat": False}
  examples = list(_stream(tiny, **settings))
  assert sorted(int(e["number"]) for e in examples) == [
    n for n in range(30) if n % 3
  ]
  end = int(examples[-1]["position"]) + 1
  assert list(_stream(tiny, start_position=end, **settings)) == []


def test_python_functions_cannot_be_resumed(tiny, new_tasks):
  def anything(split, shuffle_files, seed=None):
    return tf.data.Dataset.range(3).map(lambda n: {"number": n})

  seqio.TaskRegistry.add(
    "function",
    source=seqio.FunctionDataSource(anything, splits=["train"]),
    output_features={"number": plain_feature(tf.int64, rank=0)},
  )
  with pytest.raises(TaskError, match=r"cannot be resumed.*RandomAccessSource"):
    _stream(tiny, task="function")


def test_an_empty_file_is_said_to_be_empty(tiny, tmp_path, new_tasks):
  (tmp_path / "empty.txt").touch()
  seqio.TaskRegistry.add(
    "empty",
    source=seqio.TextLineDataSource({"train": str(tmp_path / "empty.txt")}),
    output_features={},
  )
  with pytest.raises(TaskError, match="no record in split 'train'"):
    _stream(tiny, task="empty")
