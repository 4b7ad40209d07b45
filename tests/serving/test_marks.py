"""What is marked in a block."""

import pytest

from realm_jax.serving.marks import marked_body

_BODY = "Béla was born in Tarn in 1901. Later Béla built the bridge of Pola."


@pytest.fixture
def marked(world):
  """`marked(row, answers, said)` returns what is marked of a block."""

  def call(row, answers, said=None):
    block, words = world.corpus.block(row), world.corpus.vocabulary
    segments = marked_body(block, words, answers=answers, said=said)
    assert "".join(segment.text for segment in segments) == block.body
    return [(s.text, s.mark) for s in segments if s.mark]

  return call


def test_every_occurrence_of_the_answer_is_marked_over_the_rest(world, marked):
  # Row 1 is Béla's.
  assert world.corpus.block(1).body == _BODY
  start = len("Béla was born in ")
  said = (start, start + len("Tarn in 1901"))
  assert marked(1, ["béla", "1901"], said) == [
    ("Béla", "answer"),
    ("Tarn in ", "said"),
    ("1901", "answer"),
    ("Béla", "answer"),
  ]


def test_a_part_of_a_word_is_no_answer(marked):
  # The rare names are read letter by letter: row 8 is of Håkon.
  assert marked(8, ["h"]) == []
  assert ("Håkon", "answer") in marked(8, ["hakon"])
