"""Batches: fixed shapes, and the same data on any number of processes."""

import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import TaskContext, TaskError
from realm_jax.inputs.features import token_feature
from tests.inputs import tiny_corpus

_FIELDS = {"batch_size": 4, "block_length": 24, "max_masks": 3}


def _stream(task, context, *, fields=None, **arguments):
  config = tiny_corpus.config(task, context, **_FIELDS | (fields or {}))
  return BatchStream(config, **arguments)


def _some(task, context, num=6, **settings):
  stream = _stream(task, context, **settings)
  batches = list(itertools.islice(stream, num))
  stream.close()
  return batches


def test_shapes_and_types(tiny):
  (cloze,) = _some("inverse_cloze", tiny, 1)
  assert {n: (a.shape, a.dtype.name) for n, a in cloze.arrays.items()} == {
    "query": ((4, 16), "int32"),
    "block": ((4, 24), "int32"),
    "removed": ((4,), "bool"),
    "source_id": ((4,), "int64"),
    "source_hash": ((4,), "int64"),
  }
  (masked,) = _some("masked_random_tokens", tiny, 1)
  assert {n: (a.shape, a.dtype.name) for n, a in masked.arrays.items()} == {
    "query": ((4, 16), "int32"),
    "mask_positions": ((4, 3), "int32"),
    "mask_targets": ((4, 3), "int32"),
    "mask_weights": ((4, 3), "float32"),
    "source_id": ((4,), "int64"),
    "source_hash": ((4,), "int64"),
  }
  (questions,) = _some("open_qa", tiny, 1)
  assert set(questions.arrays) == {"query"}


@pytest.mark.parametrize(
  ("task", "count"), [("inverse_cloze", 4), ("open_qa", 2)]
)
def test_processes_share_the_rows_of_one_batch(task, count, tiny):
  alone = _some(task, tiny)
  parts = [
    _some(task, tiny, rows=rows) for rows in np.arange(4).reshape(count, -1)
  ]
  for whole, *pieces in zip(alone, *parts, strict=True):
    together = np.concatenate([p.next_positions for p in pieces])
    np.testing.assert_array_equal(together, whole.next_positions)
    for name, array in whole.arrays.items():
      together = np.concatenate([p.arrays[name] for p in pieces])
      np.testing.assert_array_equal(together, array)
    if task == "open_qa":
      together = itertools.chain(*(p.answers for p in pieces))
      assert list(together) == whole.answers


@pytest.mark.parametrize("task", ["inverse_cloze", "open_qa"])
def test_a_stream_goes_on_at_the_next_positions_of_any_batch(task, tiny):
  whole = _some(task, tiny)
  rest = _some(task, tiny, 3, positions=whole[2].next_positions)
  for one, other in zip(rest, whole[3:], strict=True):
    np.testing.assert_array_equal(one.next_positions, other.next_positions)
    for name, array in one.arrays.items():
      np.testing.assert_array_equal(array, other.arrays[name])


def test_questions_come_with_their_answers(tiny):
  words = tiny.corpus.vocabulary.pieces.index
  settings = {"shuffle": False, "repeat": False}
  (batch,) = _some("open_qa", tiny, 2, fields={"batch_size": 3}, **settings)
  assert batch.texts("question_id") == ["questions:1", "w", "questions:3"]
  assert batch.answers == [["Africa"], ["1900", "since 1900"], ["Rhine"]]
  assert batch.answer_tokens == [
    [(words("africa"),)],
    [(words("1900"),), (words("since"), words("1900"))],
    [(words("rhine"),)],
  ]
  assert batch.texts("answer_kind") == ["string"] * 3


def test_the_last_batch_of_an_epoch_is_filled_up(tiny):
  settings = {"shuffle": False, "repeat": False, "fields": {"batch_size": 2}}
  first, last = _some("open_qa", tiny, 5, **settings)
  np.testing.assert_array_equal(first.is_real, [True, True])
  np.testing.assert_array_equal(last.is_real, [True, False])
  assert last.texts("question_id") == ["questions:3", "w"]
  np.testing.assert_array_equal(
    last.arrays["query"][1], first.arrays["query"][1]
  )
  assert last.positions.tolist() == [2, -1]


def _twice(records):
  def two(record):
    example = {"position": record["position"], "query": record["body_ids"]}
    return tf.data.Dataset.from_tensors(example).repeat(2)

  return records.flat_map(two)


def test_several_examples_of_one_record_are_refused(tiny, new_tasks):
  seqio.TaskRegistry.add(
    "twice",
    source=seqio.TaskRegistry.get("inverse_cloze").source,
    preprocessors=[_twice],
    output_features={"query": token_feature()},
  )
  with pytest.raises(TaskError, match="position 0 twice or out of order"):
    _some("twice", tiny, 1, shuffle=False)


def test_a_closed_stream_is_at_its_end(tiny):
  stream = _stream("inverse_cloze", tiny)
  next(stream)
  stream.close()
  assert list(stream) == []
  stream.close()
  _stream("inverse_cloze", tiny).close()


def test_streams_close_while_they_run_ahead(tiny):
  for _ in range(2):
    stream = _stream("masked_random_spans", tiny, fields={"batches_ahead": 50})
    next(stream)
    stream.close()


def test_a_file_that_changes_under_a_run_is_reported(tiny, tmp_path):
  path = tmp_path / "questions.jsonl"
  path.write_text('{"question": "who?", "answer": "a"}\n' * 200)
  context = TaskContext(tiny.corpus_dir, {"train": path})
  stream = _stream("open_qa", context, fields={"batches_ahead": 0})
  path.write_text("gone")
  with pytest.raises(ValueError, match=r"questions.jsonl, line \d+"):
    list(itertools.islice(stream, 100))
  stream.close()
