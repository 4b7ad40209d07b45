"""Patterns: those of CuratedTREC as Python matches them, bounded in time."""

import json
import re
import warnings

import pytest

from realm_jax.text.answers import regex_match
from realm_jax.text.patterns import FLAGS, Pattern

SLOW = "(a|aa)+$"


@pytest.fixture(scope="module")
def real_patterns(shared_data):
  lines = [
    line
    for path in sorted((shared_data / "curatedtrec").glob("*.tsv"))
    for line in path.read_text(encoding="utf-8").splitlines()
  ]
  return sorted({line.split("\t")[-1] for line in lines})


@pytest.fixture(scope="module")
def real_texts(shared_data):
  lines = (shared_data / "qed" / "qed_dev_part.jsonl").read_text().splitlines()
  return [json.loads(line)["paragraph_text"] for line in lines[:25]]


def test_real_patterns_match_as_in_python(real_patterns, real_texts):
  assert len(real_patterns) > 2000
  # Predictions that some patterns match: what patterns say, without operators.
  said = [re.sub(r"\\[a-z]|[^\w ]", " ", p).strip() for p in real_patterns]
  predictions = [
    *said[::40],
    *real_texts[:3],
    "",
    "U+212A \u212a \u0131 \u00a0",
  ]
  num_true = 0
  for pattern, own in zip(real_patterns, said, strict=True):
    with warnings.catch_warnings(action="ignore"):
      by_python = re.compile(pattern, FLAGS)
    for prediction in (own, *predictions):
      expected = by_python.match(prediction) is not None
      num_true += expected
      assert regex_match(prediction, pattern) == expected, (pattern, prediction)
  assert num_true > 1000


def test_a_slow_pattern_is_stopped_and_not_searched_again():
  slow = Pattern(SLOW)
  assert slow.spans("aaa")
  assert not slow.occurs("a" * 60 + "b")
  assert "takes too long" in slow.problem
  assert not slow.spans("aaa")


def test_spans_leave_out_white_space_and_nothing():
  found = Pattern(r"\s*\w*\s*").spans("ab  cd\n  ")
  assert [(s.start, s.stop) for s in found] == [(0, 2), (4, 6)]
