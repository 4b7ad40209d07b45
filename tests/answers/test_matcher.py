"""All answers in all blocks at once are those of each answer in each block."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.answers import matcher
from realm_jax.answers.distinct import DistinctAnswers, token_text
from realm_jax.text.answer_spans import find_pattern_spans, find_token_spans
from realm_jax.text.answers import contains_characters
from realm_jax.text.patterns import Pattern
from tests.answers.texts import VOCABULARY, Texts

TEXTS = st.lists(st.text("#ab1 é", max_size=8), max_size=5)
ANSWERS = st.sets(st.text("ab1é", min_size=1, max_size=3), max_size=6)
PATTERNS = st.sets(
  st.lists(
    st.sampled_from(
      ["a", "B", "é", "(a|b1)", r"\s", "[ab]", "1?", "(?:ab)+", "^", r"\b", "#"]
    ),
    min_size=1,
    max_size=4,
  ).map("".join),
  max_size=4,
)


def _found(corpus, answers):
  made = matcher.BlockMatcher(
    answers, vocab_size=corpus.vocab_size, continuation=corpus.continuation
  )
  keys = made.search(corpus, np.arange(corpus.num_blocks))
  matches = matcher.unpacked(matcher.distinct(keys))
  rows = zip(*map(np.ndarray.tolist, matches), strict=True)
  return list(rows), made.refused


@given(TEXTS, ANSWERS)
def test_characters(texts, strings):
  answers = DistinctAnswers("characters", tuple(sorted(strings)))
  expected = [
    (number, block, 0)
    for number, string in enumerate(answers.strings)
    for block, text in enumerate(texts)
    if contains_characters(text.encode(), [string])
  ]
  assert _found(Texts(texts), answers)[0] == expected


@given(
  TEXTS,
  st.sets(
    st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=3).map(
      tuple
    ),
    max_size=6,
  ),
)
def test_tokens_and_where_the_first_occurrence_ends(texts, tokens):
  corpus = Texts(texts)
  tokens = sorted(tokens)
  answers = DistinctAnswers("tokens", tuple(map(token_text, tokens)))
  flat, offsets = corpus.body_tokens_flat(range(len(texts)))
  expected = {}
  for number, answer in enumerate(tokens):
    spans = find_token_spans(flat, offsets, [answer])
    for block, start, width in zip(*spans, strict=True):
      expected.setdefault((number, int(block)), int(start + width))
  assert _found(corpus, answers)[0] == [(*k, v) for k, v in expected.items()]


@settings(max_examples=60)
@given(TEXTS, PATTERNS)
def test_patterns_by_either_rule(texts, patterns):
  corpus = Texts(texts)
  by_characters, by_tokens = [], []
  ordered = tuple(sorted(patterns))
  for number, pattern in enumerate(ordered):
    for block, text in enumerate(texts):
      if Pattern(pattern).spans(text):
        by_characters.append((number, block, 0))
      spans = find_pattern_spans(
        text.encode(),
        corpus.body_byte_ranges(block),
        corpus.continuation[corpus.body_token_ids(block)],
        Pattern(pattern),
      )
      if spans:
        by_tokens.append((number, block, min(limit for _, limit in spans)))
  characters = DistinctAnswers("characters", (), ordered)
  assert _found(corpus, characters) == (by_characters, {})
  assert _found(corpus, DistinctAnswers("tokens", (), ordered))[0] == by_tokens


def test_bad_patterns_are_refused_with_the_reason():
  patterns = ("(", "(a|aa)+$", "b")
  answers = DistinctAnswers("characters", (), patterns)
  found, refused = _found(Texts(["a" * 60 + "b"] * 2), answers)
  assert found == [(2, 0, 0), (2, 1, 0)]
  assert sorted(refused) == [0, 1]
  assert "unterminated" in refused[0]
  assert "too long" in refused[1]
