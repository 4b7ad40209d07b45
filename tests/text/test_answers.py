"""Answer normalisation, scores and containment."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.text import answers
from tests.golden import make_scores

# Words from which random strings collide often enough to be interesting.
PHRASES = st.lists(
  st.sampled_from(
    ["The", "a", "an", "cat", "CAT", "cat's", "U.S.", "1,000", "é"]
  ),
  max_size=6,
).map(" ".join)


@pytest.mark.parametrize(
  ("prediction", "reference", "score"),
  [
    # 2 shared of 3 predicted and 2 wanted: 2 * (2/3 * 1) / (2/3 + 1) = 0.8.
    ("14 December 1972", "December 1972", 0.8),
    # "to" is shared twice, of 4 and 3 words: 4 / 7.
    ("to be to do", "to and to", 4 / 7),
    ("the cat", "a cat", 1.0),
    ("dog", "cat", 0.0),
    ("the", "an", 1.0),
    ("the", "cat", 0.0),
  ],
)
def test_token_f1_by_hand(prediction, reference, score):
  assert answers.token_f1(prediction, reference) == pytest.approx(score)
  assert answers.token_f1(reference, prediction) == pytest.approx(score)


def test_the_best_reference_counts():
  references = ["14 December 1972 UTC", "December 1972"]
  assert answers.is_correct("december 1972", references)
  assert answers.best_token_f1("14 December 1972", references) == pytest.approx(
    6 / 7
  )
  assert not answers.is_correct("anything", [])
  assert answers.best_token_f1("anything", []) == 0.0


def test_a_regex_matches_from_the_start_of_the_raw_prediction():
  pattern = r"20,?237\s*f(oo|ee)?t"
  assert answers.is_correct(
    "20,237 FEET above the sea", [pattern], kind="regex"
  )
  assert not answers.is_correct("about 20,237 feet", [pattern], kind="regex")
  # MULTILINE moves no match to a later line.
  assert not answers.is_correct(
    "height:\n20237 ft", ["^" + pattern], kind="regex"
  )
  # The prediction keeps its punctuation: it is not normalised.
  assert not answers.is_correct("U.S.", ["US"], kind="regex")
  assert answers.is_correct("China", ["Japan", "chin."], kind="regex")


def test_a_bad_pattern_matches_nothing_and_is_reported():
  assert not answers.is_correct("(", ["("], kind="regex")
  assert answers.is_correct("six", ["(", "six"], kind="regex")
  assert not answers.contains_answer("a ( b", ["("], kind="regex")
  reasons = answers.bad_patterns(["(", "six", "a{99999999999999999999}"])
  assert list(reasons) == ["(", "a{99999999999999999999}"]
  assert "unterminated subpattern" in reasons["("]


@pytest.mark.parametrize(
  ("text", "answer", "contained"),
  [
    ("He met Alice Smith.", "alice smith", True),
    ("He met Alice Smith.", "Ali", False),
    ("the U.S. army", "U.S.", True),
    ("a Café here", "cafe\u0301", True),
    ("a Café here", "cafe", False),
    ("in 1972\u00a0and\u200blater", "1972 and later", True),
    ("anything", "", False),
  ],
)
def test_contains_answer_by_hand(text, answer, contained):
  assert answers.contains_answer(text, [answer]) == contained
  assert answers.contains_answer(text, ["\u2603", answer]) == contained


def words_one_by_one(text):
  """DrQA's tokens by walking over the characters."""
  words, open_word = [], False
  for character in unicodedata.normalize("NFD", text):
    category = unicodedata.category(character)[0]
    if category in "LNM":
      words[-1:] = (
        [words[-1] + character] if open_word else [*words[-1:], character]
      )
      open_word = True
    else:
      open_word = False
      if category not in "ZC":
        words.append(character)
  return [word.lower() for word in words]


@given(st.text(max_size=20) | PHRASES, st.text(max_size=3) | PHRASES)
def test_contains_answer_is_a_search_for_a_run_of_words(text, answer):
  words, wanted = words_one_by_one(text), words_one_by_one(answer)
  found = bool(wanted) and any(
    words[start : start + len(wanted)] == wanted for start in range(len(words))
  )
  assert answers.contains_answer(text, [answer]) == found


@pytest.fixture(scope="module")
def released():
  """What it says: `tests/golden/make_scores.py`."""
  with np.load(make_scores.ORQA) as arrays:
    yield arrays


@pytest.mark.parametrize("name", make_scores.FILES)
def test_our_scoring_agrees_on_every_row(name, released, shared_data):
  rows = make_scores.read(shared_data, name)
  digests = [
    make_scores.digest(list(map(answers.normalize_answer, row.answers)))
    for row in rows
  ]
  np.testing.assert_array_equal(digests, released[f"{name} digests"])
  correct = [
    [
      answers.is_correct(
        text, row.answers, kind="regex" if row.is_regex else "string"
      )
      for text in texts
    ]
    for row, texts in zip(rows, make_scores.predictions(rows), strict=True)
  ]
  expected = np.unpackbits(released[f"{name} correct"], axis=1)
  np.testing.assert_array_equal(correct, expected[:, : len(correct[0])])
