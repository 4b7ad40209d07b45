"""Recurring spans: words of a sentence that its passage has again.

As in Splinter (Ram et al. 2021, arXiv 2101.00438, section 3), one occurrence of
a recurring span is masked, and another one is the answer. The functions are
TensorFlow graph code for tf.data.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Bool, Int

from realm_jax.text.salient_spans import FUNCTION_WORDS
from realm_jax.text.wordpieces import CONTINUATION, WordpieceVocabulary


class SpanCandidates(NamedTuple):
  """Spans of a sentence: first tokens and numbers of tokens."""

  start: Int[tf.Tensor, " n"]
  width: Int[tf.Tensor, " n"]


def content_pieces(vocabulary: WordpieceVocabulary) -> Bool[np.ndarray, " v"]:
  """Returns which pieces may make a span: no punctuation, no function words."""

  def is_content(piece: str) -> bool:
    word = piece.removeprefix(CONTINUATION)
    return word.isalnum() and piece not in FUNCTION_WORDS

  return np.array([is_content(piece) for piece in vocabulary.pieces])


def recurring_spans(
  sentence: Int[tf.Tensor, " s"],
  text: Int[tf.Tensor, " t"],
  *,
  is_continuation: Bool[tf.Tensor, " v"],
  is_content: Bool[tf.Tensor, " v"],
  max_width: int,
) -> SpanCandidates:
  """Returns the spans of a sentence that also occur in another text.

  They consist of whole words in both, begin and end with content words, have
  at most `max_width` tokens, and are parts of no longer one.
  """
  length = tf.size(sentence)

  def ends_word(token_ids: tf.Tensor) -> tf.Tensor:
    """Returns whether a word ends before each token, and at the end."""
    continues = tf.gather(is_continuation, token_ids)
    return tf.concat([~continues, [True]], 0)

  sentence_ends, text_ends = ends_word(sentence), ends_word(text)
  is_content = tf.gather(is_content, sentence)
  same = sentence[:, None] == text[None]
  run = tf.ones_like(same)
  longest = tf.zeros_like(sentence)
  for width in range(1, max_width + 1):
    # run[i, j]: the `width` tokens from i on are those of the text from j on.
    moved = same[width - 1 :, width - 1 :]
    missing = tf.shape(same) - tf.shape(moved)
    run &= tf.pad(moved, [[0, missing[0]], [0, missing[1]]])
    limit = tf.pad(text_ends[width:], [[0, width]])[: tf.size(text)]
    ends = sentence_ends[width:] & is_content[width - 1 :]
    own_limit = tf.pad(ends, [[0, length - tf.size(ends)]])
    recurs = tf.reduce_any(run & limit, axis=1) & own_limit
    longest = tf.where(recurs, width, longest)
  longest = tf.where(is_content & sentence_ends[:-1], longest, 0)
  start = tf.range(length)
  limit = start + longest
  # A span is part of another if one from before reaches as far.
  reached = tf.scan(tf.maximum, tf.concat([[0], limit], 0))[:-1]
  kept = (longest > 0) & (limit > reached)
  return SpanCandidates(start[kept], longest[kept])
