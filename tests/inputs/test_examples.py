"""The stream of examples: one for all processes, resumable anywhere."""

import dataclasses
import itertools

import numpy as np
import pytest
import seqio

from realm_jax.inputs.blocks import CorpusSource
from realm_jax.inputs.config import TaskError, task_context
from realm_jax.inputs.examples import ExampleStream, find_task
from realm_jax.inputs.features import token_feature
from tests.inputs import tiny_corpus

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(
  "task", ["inverse_cloze", "masked_salient_spans", "open_qa"]
)
def test_a_stream_that_resumes_after_any_example_goes_on_alike(task, tiny):
  whole = _some(task, tiny)
  positions = [int(e["position"]) for e in whole]
  assert positions == sorted(set(positions))
  # In an epoch of its own: the corpus has four blocks.
  start = positions[23] + 1
  rest = _some(task, tiny, len(whole) - 24, positions=np.array([start]))
  _assert_same(rest, whole[24:])


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


@pytest.mark.usefixtures("new_tasks")
def test_a_task_that_loses_its_position_is_refused(tiny):
  seqio.TaskRegistry.add(
    "lost",
    source=CorpusSource(),
    preprocessors=[seqio.map_over_dataset(lambda r: {"query": r["body_ids"]})],
    output_features={"query": token_feature()},
  )
  with pytest.raises(
    TaskError, match=r'return "position".*they returned query'
  ):
    next(iter(_stream("lost", tiny)))


def test_tasks_outside_a_context_ask_for_one(tiny):
  with pytest.raises(TaskError, match="with task_context"):
    seqio.get_mixture_or_task("inverse_cloze").get_dataset()
  with pytest.raises(TaskError, match=r"no split 'test', only train"):
    _stream("inverse_cloze", tiny, split="test")
  with pytest.raises(TaskError, match=r"did you mean inverse_cloze.*open_qa"):
    _stream("inverse_close", tiny)
  with pytest.raises(TaskError, match=r"no module 'nowhere\.at_all'"):
    find_task("inverse_cloze", ["nowhere.at_all"])
