"""Inverse cloze: the query and what is left of its block."""

import itertools

import numpy as np

from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus


def _examples(tiny, *, num, query=64, block=64):
  config = tiny_corpus.config(
    "inverse_cloze", tiny, query_length=query, block_length=block
  )
  return itertools.islice(ExampleStream(config), num)


def test_examples_as_worked_out_by_hand(tiny):
  decode = tiny.corpus.vocabulary.decode
  found, several = set(), []
  for e in _examples(tiny, num=1500):
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
  assert len(several) < 1500
  assert abs(np.mean(several) - 0.9) < 5 * np.sqrt(0.09 / len(several))


def test_examples_keep_to_their_lengths(tiny):
  separator = tiny.corpus.vocabulary.sep_id
  for example in _examples(tiny, num=30, query=5, block=9):
    query, block = example["query"], example["block"]
    # [CLS], three tokens (no sentence has fewer), [SEP].
    assert len(query) == 5
    assert len(block) <= 9
    assert query[-1] == block[-1] == separator
    assert np.sum(block == separator) == 2
