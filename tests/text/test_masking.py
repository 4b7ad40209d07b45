"""Which tokens are masked: by hand, and over many seeds."""

import collections

import numpy as np
import tensorflow as tf

from realm_jax.text import masking

# Sentences of 4, 3 and 5 tokens; token ids are their places + 10, and those
# of _CONTINUED continue a word.
_BLOCK = {
  "body_ids": tf.range(10, 22),
  "sentences": tf.constant([[0, 4], [4, 7], [7, 12]]),
  "salient_spans": tf.constant([[1, 3], [9, 10], [10, 12]]),
  "salient_span_kinds": tf.constant(["name", "date", "number"]),
}
_CONTINUED = (12, 15, 16)
_IS_CONTINUATION = tf.constant([i in _CONTINUED for i in range(300)])


def _draw(choose, *, times, **settings):
  """(token ids, whether masked) under `times` seeds."""

  def draw(i):
    seed = tf.stack([7, tf.cast(i, tf.int32)])
    return choose(_BLOCK, seed, is_continuation=_IS_CONTINUATION, **settings)

  draws = tf.data.Dataset.range(times).map(draw)
  return [(d.token_ids, d.is_masked) for d in draws.as_numpy_iterator()]


def _is_near(count: int, expected: float) -> bool:
  return abs(count - expected) < 5 * np.sqrt(expected)


def test_salient_spans_are_masked_whole_and_equally_often():
  counts = collections.Counter(
    (tuple(ids.tolist()), tuple(np.flatnonzero(is_masked).tolist()))
    for ids, is_masked in _draw(masking.salient_span, times=900)
  )
  assert set(counts) == {
    ((10, 11, 12, 13), (1, 2)),
    ((17, 18, 19, 20, 21), (2,)),
    ((17, 18, 19, 20, 21), (3, 4)),
  }
  assert all(_is_near(count, 300) for count in counts.values())


def test_random_masks_take_any_sentence_equally_often():
  for choose in (masking.random_tokens, masking.random_spans):
    counts = collections.Counter(
      int(ids[0]) for ids, _ in _draw(choose, times=900)
    )
    assert set(counts) == {10, 14, 17}
    assert all(_is_near(count, 300) for count in counts.values())


def test_random_spans_hide_whole_words_until_the_share_is_reached():
  words = {10: (10,), 11: (11, 12), 13: (13,), 14: (14, 15, 16)}
  seen = set()
  for ids, is_masked in _draw(masking.random_spans, times=300, rate=0.5):
    masked = set(ids[is_masked].tolist())
    seen.add(frozenset(masked))
    for pieces in words.values():
      assert len(masked & set(pieces)) in (0, len(pieces))
    # Half of 4 is 2, of 3 rounds to 2, of 5 to 2. A word of two or three
    # pieces may pass that by what is left of it.
    assert len(masked) in (2, 3)
  assert {frozenset(s) for s in ({10, 13}, {14, 15, 16}, {11, 12})} <= seen


def test_span_corruption_hides_its_share_of_a_block_in_spans_of_its_length():
  cases = {(0.25, 3.0): (3, 1), (0.5, 2.0): (6, 3), (0.5, 1.0): (6, 6)}
  for (rate, mean_length), (num_masked, num_spans) in cases.items():
    seen = set()
    for ids, is_masked in _draw(
      masking.corrupted_spans, times=200, rate=rate, mean_length=mean_length
    ):
      assert ids.tolist() == [*range(10, 22)]
      assert is_masked.sum() == num_masked and not is_masked[0]
      assert np.sum(np.diff(is_masked.astype(int)) == 1) == num_spans
      seen.add(tuple(is_masked.tolist()))
    # Three parts of 6 tokens can be chosen in C(5, 2) ways.
    assert len(seen) <= {1: 1, 3: 100, 6: 1}[num_spans]
    assert num_spans != 3 or len(seen) > 60
