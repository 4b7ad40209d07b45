"""Batches of tasks and mixtures: the same data in any layout of processes."""

import collections
import functools
import itertools
import re

import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.errors import RealmError
from realm_jax.inputs.batch import texts_with_sentinels
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.reader_texts import texts_of
from realm_jax.tasks import masked_sentences
from realm_jax.text.masking import random_spans, random_tokens
from tests.inputs import numbers, tiny_corpus
from tests.inputs.numbers import joined, some

B = 8


def _config(tiny, task="numbers", batch_size=B, **fields):
  return tiny_corpus.config(task, tiny, batch_size=batch_size, **fields)


def _shares(count, batch_size=B):
  return np.arange(batch_size).reshape(count, -1)


def test_a_feature_of_any_name_is_padded_and_no_longer_than_its_limit(
  tiny, new_tasks
):
  numbers.add_task(numbers.Numbers(29))  # Their texts are 0 to 2.
  config = _config(tiny, other_lengths={"texts": 3})
  (batch,) = some(config, 1)
  assert batch.host["texts"].shape == (B, 3)
  config = _config(tiny, other_lengths={"texts": 1})
  with pytest.raises(
    TaskError, match=r"'texts' of length 2, and 1 .* OTHER_LENGTHS"
  ):
    some(config, 4)
  with pytest.raises(RealmError, match="whose length is QUERY_LENGTH"):
    _config(tiny, other_lengths={"query": 3})


def test_questions_come_with_their_answers(tiny):
  words = tiny.corpus.vocabulary.pieces.index
  config = _config(tiny, "open_qa", batch_size=3)
  (batch,) = some(config, 2, shuffle=False, repeat=False)
  assert set(batch.arrays) == {"query"}
  assert batch.texts("question_id") == ["questions:1", "w", "questions:3"]
  since = [[words("1900")], [words("since"), words("1900")]]
  assert batch.answers == [
    ("string", ["Africa"], [[words("africa")]]),
    ("string", ["1900", "since 1900"], since),
    ("string", ["Rhine"], [[words("rhine")]]),
  ]


def test_masked_sentences_are_inputs_and_targets_of_t5(tiny):
  batches = some(_config(tiny, "masked_salient_spans"), 6)
  pairs = {p for b in batches for p in texts_with_sentinels(b, tiny.examples)}
  sentences = {
    "Europe": "the tall alps lie in <extra_id_0>.",
    "Basel": "it passes <extra_id_0>.",
    "1900": "fish swim in it since <extra_id_0>.",
    "Africa": "it flows in <extra_id_0>.",
    "Norway": "a city in <extra_id_0>.",
    "Bergen": "see also <extra_id_0>.",
  }
  assert pairs == {
    (text, f"<extra_id_0> {span} <extra_id_1>")
    for span, text in sentences.items()
  }


@pytest.mark.slow
@pytest.mark.parametrize("choose", [random_tokens, random_spans])
def test_targets_fill_in_what_their_inputs_lack(choose, tiny, new_tasks):
  """With several masks, few that are scored, and sentences that are cut."""
  masked_sentences.add("many", functools.partial(choose, rate=0.6))
  most = 0
  for batch in some(_config(tiny, "many", max_masks=2, query_length=7), 6):
    for text, target in texts_with_sentinels(batch, tiny.examples):
      _, *parts, _ = re.split(r"<extra_id_\d+>", target)
      most = max(most, len(parts))
      for number, span in enumerate(parts):
        text = text.replace(f"<extra_id_{number}>", span[1:-1])
      assert any(text in whole for _, whole in tiny_corpus.DOCUMENTS)
  assert most > 1


@pytest.mark.slow
def test_spans_of_a_whole_block_are_inputs_and_targets_of_t5(tiny):
  config = _config(tiny, "span_corruption", query_length=32, max_masks=8)
  filled = set()
  for batch in some(config, 6):
    for text, target in texts_with_sentinels(batch, tiny.examples):
      _, *parts, _ = re.split(r"<extra_id_\d+>", target)
      for number, span in enumerate(parts):
        text = text.replace(f"<extra_id_{number}>", span[1:-1])
      filled.add(text)
  assert filled == {text for _, text in tiny_corpus.DOCUMENTS}


@pytest.mark.slow
def test_a_prefix_is_read_and_the_rest_of_its_block_written(tiny):
  words = tiny.corpus.vocabulary
  seen = set()
  for batch in some(_config(tiny, "prefix_lm", query_length=32), 12):
    queries = batch.arrays["query"]
    inputs, targets = texts_of(batch, tiny.examples)
    for query, text, target in zip(queries, inputs, targets, strict=True):
      whole = {body for _, body in tiny_corpus.DOCUMENTS}
      assert {f"{text} {target}", text + target} & whole
      assert query[query != 0][1:-1].tolist() == words.encode(text)
      seen.add(text)
  assert len(seen) > 8


@pytest.mark.slow
def test_a_continuation_is_the_second_half_of_its_block(tiny):
  halves = dict[str, str]()
  for batch in some(_config(tiny, "continuation", query_length=32), 12):
    for text, target in zip(*texts_of(batch, tiny.examples), strict=True):
      # A block is split at the same place in each epoch.
      assert halves.setdefault(text, target) == target
  words = {body: len(body.split()) for _, body in tiny_corpus.DOCUMENTS}
  for text, target in halves.items():
    (whole,) = {f"{text} {target}", text + target} & words.keys()
    assert abs(len(text.split()) - words[whole] / 2) <= 1
  assert len(halves) == len(words)


@pytest.fixture
def mixed(new_tasks, tmp_path):
  """The task "numbers", and the mixture "mixed" of it and numbers from 100."""
  numbers.add_task(numbers.lines(tmp_path / "lines.txt", 29))
  numbers.add_task(numbers.Numbers(40, first=100), name="many")
  seqio.MixtureRegistry.add("mixed", [("numbers", 3), ("many", 1)])
  yield
  seqio.MixtureRegistry.remove("mixed")


@pytest.mark.slow
@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("task", ["numbers", "mixed"])
def test_processes_join_to_one_stream_in_any_layout(task, tiny, monkeypatch):
  batches = some(_config(tiny, task), 12)
  whole = joined(batches)
  rows = [[] for _ in range(B)]
  for example in itertools.islice(ExampleStream(_config(tiny, task)), 25 * B):
    rows[int(example["position"]) % B].append(example)
  for name in ("number", "draw"):
    expected = [[e[name] for e in row[:12]] for row in rows]
    np.testing.assert_array_equal(whole[name].T, expected, err_msg=name)
  np.testing.assert_array_equal(whole["num_texts"], whole["number"] % 3)
  # However far a process reads ahead, and wherever it begins.
  positions = batches[6].next_positions
  # In epochs of their own, and not all in the same one.
  assert len(set(positions // B)) > 1
  for count, per_lookup, ahead in ((2, 7, 0), (1, 1, 9)):
    lookups = "realm_jax.inputs.sources.RECORDS_PER_LOOKUP"
    monkeypatch.setattr(lookups, per_lookup)
    config = _config(tiny, task, batches_ahead=ahead)
    for own in _shares(count):
      part = some(config, 5, positions=positions[own])
      for name, values in joined(part).items():
        np.testing.assert_array_equal(values, whole[name][7:, own], name)


@pytest.mark.slow
@pytest.mark.usefixtures("mixed")
def test_tasks_come_by_rate_and_their_records_equally_often(tiny):
  found = collections.Counter(
    int(example["number"])
    for example in itertools.islice(ExampleStream(_config(tiny, "mixed")), 1000)
  )
  few = {number: n for number, n in found.items() if number < 100}
  assert sum(few.values()) == pytest.approx(750, abs=69)  # 5 sigma.
  assert sorted(few) == [number for number in range(29) if number % 3]
  mean = 750 / len(few)
  assert max(abs(n - mean) for n in few.values()) < 5 * mean**0.5
  assert sorted(found.keys() - few.keys()) == [
    number for number in range(100, 140) if number % 3
  ]


@pytest.mark.slow
@pytest.mark.usefixtures("mixed")
def test_tasks_with_unlike_examples_are_not_mixed(tiny):
  @seqio.map_over_dataset
  def without_draws(example):
    return {n: v for n, v in example.items() if n != "draw"}

  numbers.add_task(numbers.Numbers(9), name="other", then=without_draws)
  seqio.MixtureRegistry.add("unlike", ["many", "other"], default_rate=1)
  try:
    with pytest.raises(TaskError, match=r"many alone gives.*draw"):
      next(stream_batches(_config(tiny, "unlike")))
    with pytest.raises(TaskError, match=r"no end.*many, other"):
      stream_batches(_config(tiny, "unlike"), repeat=False)
  finally:
    seqio.MixtureRegistry.remove("unlike")


@pytest.mark.slow
def test_rows_that_run_out_give_filler(tiny, new_tasks):
  numbers.add_task(numbers.Numbers(10))  # Without 0, 3, 6 and 9.
  config = _config(tiny, batch_size=4)
  batches = some(config, 9, shuffle=False, repeat=False)
  positions = [batch.positions.tolist() for batch in batches]
  assert positions == [[4, 1, 2, 7], [8, 5, -1, -1]]
  assert batches[1].is_real.tolist() == [True, True, False, False]
  # Each repeats the last of its own row.
  assert batches[1].arrays["number"].tolist() == [8, 5, 2, 7]
  assert batches[1].next_positions.tolist() == [12, 9, 6, 11]
  # A process ends as soon as all of its own rows have run out.
  parts = [
    some(config, 9, positions=rows, shuffle=False, repeat=False)
    for rows in _shares(2, 4)
  ]
  assert [len(part) for part in parts] == [2, 1]


@pytest.mark.slow
def test_rows_or_tasks_without_examples_are_errors(
  tiny, new_tasks, monkeypatch
):
  monkeypatch.setattr("realm_jax.inputs.examples._FRUITLESS_RECORDS", 300)
  source = numbers.Numbers(8)
  numbers.add_task(source, keep=lambda number: number % 4 != 0)
  # In the order of the source, row 0 has only numbers that are dropped.
  with pytest.raises(TaskError, match="keeps none of 300 records"):
    some(_config(tiny, batch_size=4), 1, shuffle=False)
  # In orders of their own, epochs have something for each row.
  assert len(some(_config(tiny, batch_size=4), 3)) == 3
  # One that has few is none, though a batch needs 400 records.
  rare = numbers.Numbers(644)
  numbers.add_task(rare, name="rare", keep=lambda number: number % 161 == 160)
  assert some(_config(tiny, "rare", batch_size=4), 1, shuffle=False)
  numbers.add_task(source, name="none", keep=lambda number: number < 0)
  with pytest.raises(TaskError, match="'none' keeps none of 300 records"):
    some(_config(tiny, "none"), 1)
  assert some(_config(tiny, "none"), 1, repeat=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("then", ["shuffle", "repeat"])
def test_a_task_that_shuffles_or_repeats_is_refused(then, tiny, new_tasks):
  change = {
    "shuffle": lambda examples: examples.shuffle(9, seed=1),
    "repeat": lambda examples: examples.flat_map(
      lambda example: tf.data.Dataset.from_tensors(example).repeat(2)
    ),
  }[then]
  numbers.add_task(numbers.Numbers(29), then=change)
  with pytest.raises(TaskError, match="twice or out of order"):
    some(_config(tiny), 9)
