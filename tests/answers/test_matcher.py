"""All answers in all blocks at once are those of each answer in each block."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.answers import matcher
from realm_jax.text.answers import contains_characters
from tests.answers.texts import Texts

TEXTS = st.lists(st.text("#ab1 é", max_size=8), max_size=5)
ANSWERS = st.sets(
  st.text("ab1é", min_size=1, max_size=3), min_size=1, max_size=6
)


def _found(corpus, answers):
  made = matcher.BlockMatcher(answers)
  keys = made.search(corpus, np.arange(corpus.num_blocks))
  matches = matcher.Matches.of(keys)
  return list(zip(*map(np.ndarray.tolist, matches), strict=True))


@given(TEXTS, ANSWERS)
def test_characters(texts, strings):
  answers = sorted(strings)
  expected = [
    (number, block)
    for number, string in enumerate(answers)
    for block, text in enumerate(texts)
    if contains_characters(text.encode(), [string])
  ]
  assert _found(Texts(texts), answers) == expected
