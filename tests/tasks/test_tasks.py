"""Examples of the tasks over a corpus."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from realm_jax.inputs.examples import ExampleStream
from realm_jax.tasks import masked_sentences
from realm_jax.text import masking
from tests.inputs import tiny_corpus


def _examples(context, task, *, num, query=64, masks=10):
  config = tiny_corpus.config(
    task, context, query_length=query, max_masks=masks
  )
  return itertools.islice(ExampleStream(config), num)


# --- Inverse cloze ---------------------------------------------------------


def test_examples_as_worked_out_by_hand(tiny):
  decode = tiny.corpus.vocabulary.decode
  found, several = set(), []
  for e in _examples(tiny, "inverse_cloze", num=900):
    query, block = decode(e["query"].tolist()), decode(e["block"].tolist())
    if "[CLS] rhine" in block:
      found.add((query, bool(e["removed"]), block))
    if "[CLS] nile" in block:
      # A block of one sentence is kept whole.
      assert not e["removed"]
    else:
      several.append(e["removed"])
  first, second = "it passes basel .", "ships use it ."
  third = "fish swim in it since 1900 ."
  whole = f"[CLS] rhine [SEP] {first} {second} {third} [SEP]"
  assert found == {
    (f"[CLS] {first} [SEP]", False, whole),
    (f"[CLS] {second} [SEP]", False, whole),
    (f"[CLS] {third} [SEP]", False, whole),
    (f"[CLS] {first} [SEP]", True, f"[CLS] rhine [SEP] {second} {third} [SEP]"),
    (f"[CLS] {second} [SEP]", True, f"[CLS] rhine [SEP] {first} {third} [SEP]"),
    (f"[CLS] {third} [SEP]", True, f"[CLS] rhine [SEP] {first} {second} [SEP]"),
  }
  # A sentence leaves its block nine times in ten.
  assert len(several) < 900
  assert abs(np.mean(several) - 0.9) < 5 * np.sqrt(0.09 / len(several))


# --- Masked sentences ------------------------------------------------------


def _targets(context, *, query=64):
  """The decoded targets, and the query of each."""
  decode = context.corpus.vocabulary.decode
  return {
    decode(e["mask_targets"].tolist()): decode(e["query"].tolist())
    for e in _examples(context, "masked_salient_spans", num=100, query=query)
  }


def test_salient_spans_of_the_tiny_corpus(tiny):
  assert _targets(tiny) == {
    "europe": "[CLS] the tall alps lie in [MASK] . [SEP]",
    "basel": "[CLS] it passes [MASK] . [SEP]",
    "1900": "[CLS] fish swim in it since [MASK] . [SEP]",
    "africa": "[CLS] it flows in [MASK] . [SEP]",
    "norway": "[CLS] a city in [MASK] . [SEP]",
    "bergen": "[CLS] see also [MASK] . [SEP]",
  }


@pytest.mark.slow
def test_kinds_that_are_not_masked(tiny):
  # The tagger of this corpus calls every span a name or a date.
  context = dataclasses.replace(tiny, unmasked_span_kinds=("name", "number"))
  assert _targets(context).keys() == {"1900"}


@pytest.mark.parametrize(
  "task",
  ["masked_salient_spans", "masked_random_tokens", "masked_random_spans"],
)
def test_filling_in_the_targets_gives_a_sentence_of_the_source(tiny, task):
  corpus = tiny.corpus
  for example in _examples(tiny, task, num=40):
    row = corpus.rows_of(example["source_id"]).item()
    assert example["source_hash"] == corpus.content_hashes[row]
    body = corpus.block(row).body_token_ids.tolist()
    query = example["query"].copy()
    assert np.all(query[example["mask_positions"]] == corpus.vocabulary.mask_id)
    assert np.all(example["mask_weights"] == 1.0)
    query[example["mask_positions"]] = example["mask_targets"]
    sentences = [
      body[start:limit] for start, limit in corpus.block(row).sentences
    ]
    assert query[1:-1].tolist() in sentences


@pytest.mark.usefixtures("new_tasks")
def test_masks_past_the_scored_ones_stay_masked(tiny):
  masked_sentences.add("all", functools.partial(masking.random_tokens, rate=1))
  mask_id = tiny.corpus.vocabulary.mask_id
  for example in _examples(tiny, "all", num=20, masks=2):
    np.testing.assert_array_equal(example["mask_positions"], [1, 2])
    assert np.all(example["query"][1:-1] == mask_id)


def test_a_sentence_whose_last_mask_does_not_fit_is_skipped(tiny):
  # 8 leaves six tokens: "1900" is the sixth of its sentence and "europe" too,
  # both just fit. 7 leaves five: neither does.
  short = {"basel", "africa", "norway", "bergen"}
  assert _targets(tiny, query=8).keys() == {*short, "europe", "1900"}
  assert _targets(tiny, query=7).keys() == short
