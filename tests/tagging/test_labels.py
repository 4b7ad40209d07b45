"""Labels of words become entities."""

import numpy as np
import pytest

from realm_jax.tagging.labels import entities, parse_labels

_NAMES = "O B-PER I-PER B-ORG I-ORG S-LOC E-PER DATE".split()


def found(words: str, sentences: str = ""):
  """The entities of words, given by label; `sentences` has a digit a word."""
  labels = [_NAMES.index(name) for name in words.split()]
  numbers = [int(digit) for digit in sentences] or [0] * len(labels)
  return list(
    entities(np.array(labels), np.array(numbers), parse_labels(_NAMES))
  )


@pytest.mark.parametrize(
  ("words", "wanted"),
  [
    ("O O", []),
    ("B-PER I-PER O", [(0, 1, "person")]),
    # Two entities side by side.
    ("B-PER B-PER I-PER", [(0, 0, "person"), (1, 2, "person")]),
    ("B-PER I-ORG", [(0, 0, "person"), (1, 1, "organization")]),
    # IOB1 begins with B- only after another of the kind.
    ("O I-PER I-PER O I-PER", [(1, 2, "person"), (4, 4, "person")]),
    ("I-PER B-PER", [(0, 0, "person"), (1, 1, "person")]),
    # BIOES, and a label without a prefix.
    ("B-PER I-PER E-PER S-LOC S-LOC", [
      (0, 2, "person"), (3, 3, "location"), (4, 4, "location")
    ]),
    ("DATE DATE", [(0, 1, "date")]),
  ],
)  # fmt: skip
def test_words_of_one_kind_are_one_entity(words, wanted):
  assert found(words) == wanted


def test_no_entity_leaves_its_sentence():
  wanted = [(0, 0, "person"), (1, 2, "person")]
  assert found("B-PER I-PER I-PER", "122") == wanted
