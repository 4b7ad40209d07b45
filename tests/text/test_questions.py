"""Which questions are the same."""

import pytest

from realm_jax.text.questions import normalize_question


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("Who wrote 'Emma'?", "who wrote emma"),
    ("who's  the \tBOSS ?", "Who’s the boss?"),
    ("where is São Paulo", "where is sao paulo?"),
    ("what is 1/2 of it", "what is 1 2 of it?"),
  ],
)
def test_editions_of_one_question_are_the_same(one, other):
  assert normalize_question(one) == normalize_question(other)


def test_other_questions_are_not():
  assert normalize_question("who is he?") != normalize_question("who is she?")
  assert normalize_question("in 1945") != normalize_question("in 1946")
