"""Inverse cloze: the query and what is left of its block."""

import itertools

import numpy as np
import pytest

from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus


def _examples(tiny, *, num, query=64, block=64, **settings):
  config = tiny_corpus.config(
    "inverse_cloze", tiny, query_length=query, block_length=block, **settings
  )
  return list(itertools.islice(ExampleStream(config), num))


@pytest.fixture(scope="module")
def examples(tiny):
  return _examples(tiny, num=1500)


def _decoded(tiny, ids):
  return tiny.corpus.vocabulary.decode(ids.tolist())


def test_one_block_as_worked_out_by_hand(tiny, examples):
  found = {
    (_decoded(tiny, e["query"]), bool(e["removed"]), _decoded(tiny, e["block"]))
    for e in examples
    if "[CLS] rhine" in _decoded(tiny, e["block"])
  }
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


def test_a_sentence_leaves_its_block_nine_times_in_ten(tiny, examples):
  several = [
    bool(e["removed"])
    for e in examples
    if "[CLS] nile" not in _decoded(tiny, e["block"])
  ]
  assert abs(np.mean(several) - 0.9) < 5 * np.sqrt(0.09 / len(several))


def test_a_block_of_one_sentence_is_kept_only_whole(tiny, examples):
  nile = [e for e in examples if "nile" in _decoded(tiny, e["block"])]
  assert nile
  assert not any(e["removed"] for e in nile)


def test_examples_keep_to_their_lengths(tiny):
  for example in _examples(tiny, num=30, query=5, block=9):
    query, block = example["query"], example["block"]
    # [CLS], three tokens (no sentence has fewer), [SEP].
    assert len(query) == 5
    assert len(block) <= 9
    words = tiny.corpus.vocabulary
    assert query[-1] == block[-1] == words.sep_id
    assert np.sum(block == words.sep_id) == 2
