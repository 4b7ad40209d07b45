"""Spans of a sentence that a text has again."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.text.recurring_spans import content_pieces, recurring_spans
from realm_jax.text.wordpieces import SPECIAL_PIECES, vocabulary_of

# Ids 1 and 2 are function words, 8 and 9 continue words.
IS_CONTENT = np.array([True, False, False] + 7 * [True])
IS_CONTINUATION = np.array(8 * [False] + 2 * [True])


@tf.function(
  input_signature=[tf.TensorSpec([None], tf.int32)] * 2, reduce_retracing=True
)
def _graph(sentence, text):
  return recurring_spans(
    sentence,
    text,
    is_continuation=tf.constant(IS_CONTINUATION),
    is_content=tf.constant(IS_CONTENT),
    max_width=3,
  )


def _found(sentence, text):
  spans = _graph(np.array(sentence, np.int32), np.array(text, np.int32))
  return list(zip(*(part.numpy().tolist() for part in spans), strict=True))


def _expected(sentence, text):
  """The definition, read literally."""

  def whole_words(ids, start, limit):
    before = start == limit or not IS_CONTINUATION[ids[start]]
    return before and (limit == len(ids) or not IS_CONTINUATION[ids[limit]])

  def places(ids, wanted):
    width = len(wanted)
    for start in range(len(ids) - width + 1):
      if ids[start : start + width] == wanted and whole_words(
        ids, start, start + width
      ):
        yield start

  spans = [
    (start, width)
    for start in range(len(sentence))
    for width in range(1, min(3, len(sentence) - start) + 1)
    if start in places(sentence, sentence[start : start + width])
    and any(True for _ in places(text, sentence[start : start + width]))
    and IS_CONTENT[sentence[start]]
    and IS_CONTENT[sentence[start + width - 1]]
  ]
  return [
    (s, w)
    for s, w in spans
    if not any(a <= s and s + w <= a + b and (a, b) != (s, w) for a, b in spans)
  ]


@settings(max_examples=60, deadline=None)
@given(*[st.lists(st.integers(1, 9), max_size=8)] * 2)
def test_spans_by_their_definition(sentence, text):
  assert _found(sentence, text) == _expected(sentence, text)


def test_pieces_that_make_a_span():
  pieces = [*SPECIAL_PIECES, "the", "river", "##s", ",", "1900", "##,"]
  is_content = content_pieces(vocabulary_of(pieces))
  assert is_content.tolist() == 5 * [False] + [
    False,
    True,
    True,
    False,
    True,
  ] + [False]
