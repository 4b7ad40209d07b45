"""Where answers occur in token arrays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.text import answer_spans as spans

BLOCKS = st.lists(
  st.lists(st.integers(1, 3), max_size=12), min_size=1, max_size=4
)
ANSWERS = st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=4)
# Piece 3 of the tiny vocabularies above continues a word.
IS_CONTINUATION = np.array([False, False, False, True])


def flattened(blocks):
  offsets = np.cumsum([0] + [len(block) for block in blocks])
  return np.array(list(itertools.chain(*blocks)), np.int32), offsets.astype(
    np.int64
  )


def padded(blocks):
  lengths = np.array([len(block) for block in blocks])
  rows = np.zeros((len(blocks), max(lengths.max(), 1)), np.int32)
  for row, block in zip(rows, blocks, strict=True):
    row[: len(block)] = block
  return rows, lengths


def one_by_one(blocks, answers, *, whole_words=False):
  """Every (block, start, width) by comparing every slice."""
  found = set()
  for index, block in enumerate(blocks):
    for start in range(len(block)):
      for limit in range(start + 1, len(block) + 1):
        if block[start:limit] not in answers:
          continue
        inside = block[start] == 3 or block[limit : limit + 1] == [3]
        if not (whole_words and inside):
          found.add((index, start, limit - start))
  return sorted(found)


def test_spans_of_several_blocks_by_hand():
  blocks = [[5, 7, 8, 7, 8], [8], [], [7, 8]]
  found = spans.find_token_spans(*flattened(blocks), [[7, 8], [8], [9], []])
  assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == [
    (0, 1, 2),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 1),
    (1, 0, 1),
    (3, 0, 2),
    (3, 1, 1),
  ]


def test_an_answer_does_not_cross_blocks():
  flat, offsets = flattened([[1, 2], [3, 1], [2, 3]])
  assert spans.has_answer(flat, offsets, [[2, 3]]).tolist() == [
    False,
    False,
    True,
  ]


def test_occurrences_may_overlap():
  flat, offsets = flattened([[4, 4, 4]])
  assert spans.find_token_spans(flat, offsets, [[4, 4]]).start.tolist() == [
    0,
    1,
  ]


def test_answer_spans_by_hand():
  rows = np.array([[7, 8, 9, 7, 0], [8, 7, 8, 0, 0]])
  marked = spans.answer_spans(
    rows, np.array([4, 2]), [[7], [8, 9], [7, 8, 9], [0]], max_width=2
  )
  # Width 3 is too wide; row 1 ends before its 8 and its padding.
  assert np.argwhere(marked).tolist() == [
    [0, 0, 0],
    [0, 1, 1],
    [0, 3, 0],
    [1, 1, 0],
  ]


def test_answer_spans_of_joint_rows_start_after_the_query():
  # [CLS]=1 query [SEP]=2 body [SEP]=2: the query's 7 is no answer.
  rows = np.array([[1, 7, 2, 7, 2], [1, 2, 7, 7, 2]])
  marked = spans.answer_spans(
    rows, np.array([4, 4]), [[7]], starts=np.array([3, 2]), max_width=1
  )
  assert np.argwhere(marked[..., 0]).tolist() == [[0, 3], [1, 2], [1, 3]]


@given(BLOCKS, ANSWERS, st.booleans())
def test_flat_search_finds_what_comparing_every_slice_finds(
  blocks, answers, whole_words
):
  found = spans.find_token_spans(
    *flattened(blocks),
    answers,
    is_continuation=IS_CONTINUATION if whole_words else None,
  )
  expected = one_by_one(blocks, answers, whole_words=whole_words)
  assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == expected


@given(BLOCKS, ANSWERS, st.booleans())
def test_padded_search_agrees(blocks, answers, whole_words):
  is_continuation = IS_CONTINUATION if whole_words else None
  rows, lengths = padded(blocks)
  marked = spans.answer_spans(
    rows, lengths, answers, max_width=3, is_continuation=is_continuation
  )
  expected = [
    [block, start, width - 1]
    for block, start, width in one_by_one(
      blocks, answers, whole_words=whole_words
    )
    if width <= 3
  ]
  assert np.argwhere(marked).tolist() == expected


@given(BLOCKS, ANSWERS)
def test_has_answer_names_the_blocks_that_have_a_span(blocks, answers):
  contains = spans.has_answer(*flattened(blocks), answers)
  expected = {block for block, _, _ in one_by_one(blocks, answers)}
  assert set(np.flatnonzero(contains).tolist()) == expected


def test_no_blocks_and_no_answers():
  flat, offsets = flattened([[1, 2]])
  assert spans.has_answer(flat, offsets, []).tolist() == [False]
  assert spans.has_answer(flat[:0], np.zeros(1, np.int64), [[1]]).size == 0


@pytest.mark.parametrize(
  ("span", "widened"),
  [((0, 1), (0, 1)), ((1, 2), (1, 4)), ((2, 3), (1, 4)), ((4, 5), (4, 5))],
)
def test_widen_to_words(span, widened):
  # to play ##gro ##und now
  continuation = np.array([False, False, True, True, False])
  assert spans.widen_to_words(*span, continuation) == widened
