"""Answers: scores, patterns and containment."""

import re

import numpy as np
import pytest

from realm_jax.answers import match
from realm_jax.answers.patterns import FLAGS, Pattern
from tests.golden import make_scores


@pytest.mark.parametrize(
  ("prediction", "reference", "score"),
  [
    # 2 shared of 3 predicted and 2 wanted: 2 * (2/3 * 1) / (2/3 + 1) = 0.8.
    ("14 December 1972", "December 1972", 0.8),
    # "to" is shared twice, of 4 and 3 words: 4 / 7.
    ("to be to do", "to and to", 4 / 7),
    ("the", "an", 1.0),
    ("the", "cat", 0.0),
  ],
)
def test_token_f1_by_hand(prediction, reference, score):
  assert match.token_f1(prediction, reference) == pytest.approx(score)
  assert match.token_f1(reference, prediction) == pytest.approx(score)


FEET = r"20,?237\s*f(oo|ee)?t"


def test_rouge_l_by_hand():
  """Two of three words in the same order, of stems; the best reference."""
  pytest.importorskip("rouge_score", reason="it is an extra")
  found = match.rouge_l("the cats ran", ["the cat sat", "a dog"])
  assert found == pytest.approx(2 / 3)


@pytest.mark.parametrize(
  ("prediction", "patterns", "matches"),
  [
    ("20,237 FEET above the sea", [FEET], True),
    # From the start of the raw prediction, which is not normalised.
    ("about 20,237 feet", [FEET], False),
    # MULTILINE moves no match to a later line.
    ("height:\n20237 ft", ["^" + FEET], False),
    ("China", ["Japan", "chin."], True),
    # A bad pattern matches nothing.
    ("(", ["("], False),
  ],
)
def test_patterns(prediction, patterns, matches):
  assert match.is_correct(prediction, patterns, kind="regex") == matches


def test_a_pattern_that_is_too_slow_for_a_text_matches_others():
  slow = Pattern("(a|aa)+$")
  assert not slow.occurs("a" * 60 + "b")
  assert slow.begins("aaa")
  # What it has matched before is kept.
  assert len([*Pattern("x|(a|aa)+$").spans("xx" + "a" * 60 + "b")]) == 2
  assert not slow.problem


def test_patterns_see_unicode_as_python_does():
  text = "Zürich, in 1351 Straße\nÉcole\u00a0Ünal"
  for pattern in (
    r"\bz\w+h\b",
    r"STRAßE$",
    r"^é\w+\s\bü",
    r"\d+",
    r"\Binal",
    "|",
  ):
    expected = re.finditer(pattern, text, FLAGS)
    spans = [range(*one.span()) for one in expected if one.group()]
    assert [*Pattern(pattern).spans(text)] == spans, pattern


def _agrees_with_the_released_scoring(data_dir, name):
  """What that says: `tests/golden/make_scores.py`."""
  rows = make_scores.read(data_dir, name)
  correct = [
    [
      match.is_correct(
        text, row.answers, kind="regex" if row.is_regex else "string"
      )
      for text in texts
    ]
    for row, texts in zip(rows, make_scores.predictions(rows), strict=True)
  ]
  with np.load(make_scores.ORQA) as released:
    expected = np.unpackbits(released[f"{data_dir.name}/{name}"], axis=1)
  np.testing.assert_array_equal(correct, expected[:, : len(correct[0])])


@pytest.mark.parametrize("name", make_scores.EXTRACTS)
def test_our_scoring_agrees_on_extracts(name):
  _agrees_with_the_released_scoring(make_scores.EXTRACTS_DIR, name)


@pytest.mark.parametrize("name", make_scores.FILES)
def test_our_scoring_agrees_on_every_row(name, shared_data):
  _agrees_with_the_released_scoring(shared_data, name)
