"""Cutting into blocks, on numbers worked out by hand."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from realm_jax.corpus.splitting import (
  Sentences,
  align_sentences,
  cut_overlong_sentences,
  pack_sentences,
)


@hypothesis.given(
  st.lists(st.integers(1, 10), min_size=1, max_size=30), st.integers(10, 30)
)
def test_packing_fills_and_never_overflows(sizes, capacity):
  bounds = pack_sentences(np.array(sizes), capacity=capacity)
  blocks = [sizes[a:b] for a, b in itertools.pairwise(bounds)]
  assert [size for block in blocks for size in block] == sizes
  assert all(0 < sum(block) <= capacity for block in blocks)
  for block, following in itertools.pairwise(blocks):
    assert sum(block) + following[0] > capacity


@pytest.mark.parametrize(
  ("sentences", "tokens", "token_ranges", "byte_ranges"),
  [
    # "Aa bb. Cc." with tokens Aa, bb, ., Cc, .
    (
      [[0, 6], [7, 10]],
      [[0, 2], [3, 5], [5, 6], [7, 9], [9, 10]],
      [[0, 3], [3, 5]],
      [[0, 6], [7, 10]],
    ),
    # Bytes 3…5 have no token; nor has the end, 9…10.
    (
      [[0, 2], [3, 5], [6, 8], [9, 10]],
      [[0, 2], [6, 8]],
      [[0, 1], [1, 2]],
      [[0, 2], [3, 10]],
    ),
    # The first two share a token.
    (
      [[0, 4], [5, 9], [10, 12]],
      [[0, 2], [3, 6], [7, 9], [10, 12]],
      [[0, 3], [3, 4]],
      [[0, 9], [10, 12]],
    ),
  ],
)
def test_sentences_in_tokens(sentences, tokens, token_ranges, byte_ranges):
  aligned = align_sentences(np.array(sentences), np.array(tokens))
  assert aligned.token_ranges.tolist() == token_ranges
  assert aligned.byte_ranges.tolist() == byte_ranges


def cut(text: str, pieces: list[str], capacity: int):
  """Cuts one sentence made of `pieces`; gives the texts and token ranges."""
  token_bytes, limit = [], 0
  for piece in pieces:
    start = text.index(piece.removeprefix("##"), limit)
    limit = start + len(piece.removeprefix("##"))
    token_bytes.append((start, limit))
  sentence = Sentences(
    np.array([[0, len(pieces)]]), np.array([[0, len(text)]]), np.zeros(1, int)
  )
  cut_sentences, num_pieces = cut_overlong_sentences(
    sentence,
    np.array(token_bytes),
    text=text.encode(),
    capacity=capacity,
    is_continuation=np.array([piece.startswith("##") for piece in pieces]),
  )
  texts = [text[s:t] for s, t in cut_sentences.byte_ranges]
  assert num_pieces.tolist() == [len(texts)]
  return texts, cut_sentences.token_ranges.tolist()


@pytest.mark.parametrize(
  ("text", "pieces", "capacity", "texts", "tokens"),
  [
    (
      "aa bbcc dd ee",
      "aa bb ##cc dd ee",
      2,
      ["aa", "bbcc", "dd ee"],
      [[0, 1], [1, 3], [3, 5]],
    ),
    # A word that fits in no block.
    (
      "aabbccdd e",
      "aa ##bb ##cc ##dd e",
      3,
      ["aabbcc", "dd e"],
      [[0, 3], [3, 5]],
    ),
  ],
)
def test_an_overlong_sentence_is_cut_between_words(
  text, pieces, capacity, texts, tokens
):
  assert cut(text, pieces.split(), capacity) == (texts, tokens)


def test_a_character_of_many_tokens_stays_whole():
  # Bytes: a 0, … 1-3 (three tokens), b 4. No word starts within the dots.
  def cut_dots(capacity):
    pieces, _ = cut_overlong_sentences(
      Sentences(np.array([[0, 5]]), np.array([[0, 5]]), np.zeros(1, int)),
      np.array([[0, 1], [1, 4], [1, 4], [1, 4], [4, 5]]),
      text="a…b".encode(),
      capacity=capacity,
      is_continuation=np.zeros(5, bool),
    )
    return pieces.token_ranges.tolist(), pieces.byte_ranges.tolist()

  assert cut_dots(3) == ([[0, 1], [1, 4], [4, 5]], [[0, 1], [1, 4], [4, 5]])
  # Too many for a block: both blocks show the character.
  assert cut_dots(2) == (
    [[0, 1], [1, 3], [3, 5]],
    [[0, 1], [1, 4], [1, 5]],
  )
