"""The stream of examples: one for all processes, resumable anywhere."""

import dataclasses
import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.corpus.errors import CorpusError
from realm_jax.inputs.blocks import CorpusSource
from realm_jax.inputs.config import TaskContext, TaskError, task_context
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.features import plain_feature, token_feature
from realm_jax.inputs.sources import RandomAccessSource
from tests.inputs import tiny_corpus

pytestmark = pytest.mark.slow

TASKS = (
  "inverse_cloze",
  "masked_salient_spans",
  "masked_random_tokens",
  "masked_random_spans",
  "open_qa",
)


def _stream(task, context, *, seed=0, split="train", **arguments):
  config = tiny_corpus.config(task, context, seed=seed, split=split)
  return ExampleStream(config, **arguments)


def _some(task, context, num=40, **settings):
  return list(itertools.islice(_stream(task, context, **settings), num))


def _assert_same(found, expected):
  assert len(found) == len(expected)
  for one, other in zip(found, expected, strict=True):
    assert one.keys() == other.keys()
    for name, value in one.items():
      np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("task", TASKS)
def test_a_stream_that_resumes_after_any_example_goes_on_alike(task, tiny):
  whole = _some(task, tiny)
  positions = [int(e["position"]) for e in whole]
  assert positions == sorted(set(positions))
  # In an epoch of its own: the corpus has four blocks.
  start = positions[23] + 1
  rest = _some(task, tiny, len(whole) - 24, start_position=start)
  _assert_same(rest, whole[24:])


def test_epochs_hold_every_question_once_in_orders_of_their_own(tiny):
  examples = _some("open_qa", tiny, 3 * 20)
  epochs = [
    tuple(e["question_id"] for e in examples[i : i + 3])
    for i in range(0, 60, 3)
  ]
  assert {frozenset(e) for e in epochs} == {
    frozenset({b"questions:1", b"w", b"questions:3"})
  }
  assert len(set(epochs)) > 1


def test_epochs_mask_the_same_block_in_other_ways(tiny):
  examples = _some("masked_random_tokens", tiny, 80)
  seen = {}
  for example in examples:
    key = tuple(example["mask_positions"]), tuple(example["query"])
    seen.setdefault(int(example["source_id"]), set()).add(key)
  assert all(len(ways) > 3 for ways in seen.values())


def test_seqio_alone_reads_a_task_too(tiny):
  with task_context(tiny):
    task = seqio.get_mixture_or_task("masked_salient_spans")
    native = task.get_dataset(
      sequence_length=tiny_corpus.config(task.name, tiny).lengths,
      split="train",
      shuffle=False,
      seed=0,
    )
    native = list(native.as_numpy_iterator())
  ours = list(
    _stream("masked_salient_spans", tiny, shuffle=False, repeat=False)
  )
  assert len(native) == 4
  _assert_same(native, ours)


def test_seqio_shards_are_disjoint_and_complete(tiny):
  with task_context(tiny):
    source = CorpusSource()
    shards = [
      source.get_dataset(
        "train", seed=3, shard_info=seqio.ShardInfo(index=i, num_shards=3)
      )
      for i in range(3)
    ]
    whole = source.get_dataset("train", seed=3)
    ids = [[int(r["block_id"]) for r in shard] for shard in shards]
    expected = [int(r["block_id"]) for r in whole]
  assert [len(shard) for shard in ids] == [2, 1, 1]
  assert sorted(expected) == sorted(tiny.corpus.block_ids.tolist())
  assert [expected[0::3], expected[1::3], expected[2::3]] == ids


def test_sentences_may_come_from_another_corpus(tiny, tmp_path):
  """As REALM learnt from CC-News while it searched Wikipedia."""
  other = tiny_corpus.build(tmp_path)
  context = dataclasses.replace(tiny, pretraining_corpus_dir=other.corpus_dir)
  with task_context(context):
    assert CorpusSource().open("train").corpus.source == other.corpus_dir
  words = tiny_corpus.VOCABULARY + "\nmoon"
  (tmp_path / "second").mkdir()
  other = tiny_corpus.build(tmp_path / "second", vocabulary=words)
  context = dataclasses.replace(tiny, pretraining_corpus_dir=other.corpus_dir)
  with (
    task_context(context),
    pytest.raises(CorpusError, match=r"--vocab=.*vocab\.txt"),
  ):
    CorpusSource().open("train")


def test_held_out_blocks_are_a_split_of_their_own(tiny):
  context = dataclasses.replace(tiny, held_out_blocks=1)
  with task_context(context):
    splits = {
      split: CorpusSource().open(split) for split in ("train", "validation")
    }
  ids = {
    split: records.lookup(np.arange(len(records)))["block_id"].tolist()
    for split, records in splits.items()
  }
  every = tiny.corpus.block_ids.tolist()
  assert ids == {"train": every[:3], "validation": every[3:]}
  context = dataclasses.replace(tiny, held_out_blocks=4)
  with (
    task_context(context),
    pytest.raises(TaskError, match=r"=4 leaves nothing of the 4 blocks"),
  ):
    CorpusSource().open("train")


def _add(name, preprocessors, source=None):
  seqio.TaskRegistry.add(
    name,
    source=source or CorpusSource(),
    preprocessors=preprocessors,
    output_features={"query": token_feature()},
  )


@pytest.mark.usefixtures("new_tasks")
def test_a_task_that_loses_its_position_is_refused(tiny):
  _add("lost", [seqio.map_over_dataset(lambda r: {"query": r["body_ids"]})])
  with pytest.raises(
    TaskError, match=r'return "position".*they returned query'
  ):
    next(iter(_stream("lost", tiny)))


def test_tasks_outside_a_context_ask_for_one(tiny):
  with pytest.raises(TaskError, match="with task_context"):
    seqio.get_mixture_or_task("inverse_cloze").get_dataset()
  with pytest.raises(TaskError, match=r"no split 'test', only train"):
    _stream("inverse_cloze", tiny, split="test")
  with pytest.raises(TaskError, match=r"no split 'train', only .*none"):
    _stream("open_qa", TaskContext(tiny.corpus_dir))


class _Breaking(RandomAccessSource):
  """A source whose storage fails at its tenth record."""

  def __init__(self):
    super().__init__(splits=("train",))

  @property
  def spec(self):
    return {"number": tf.TensorSpec((), tf.int32)}

  def open(self, split):
    return self

  def __len__(self):
    return 100

  def lookup(self, indices):
    if 10 in indices:
      raise OSError("disk 3 is gone")
    return {"number": indices}


@pytest.mark.usefixtures("new_tasks")
def test_an_error_of_the_source_arrives_as_itself(tiny, monkeypatch):
  monkeypatch.setattr("realm_jax.inputs.sources._RECORDS_PER_LOOKUP", 4)
  seqio.TaskRegistry.add(
    "breaking",
    source=_Breaking(),
    output_features={"number": plain_feature(tf.int32, rank=0)},
  )
  read = []
  with pytest.raises(OSError, match="disk 3 is gone"):
    for example in _stream("breaking", tiny, shuffle=False):
      read.append(int(example["number"]))
  assert read == list(range(8))
