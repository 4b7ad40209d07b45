"""Masks of sentences: salient spans, random tokens, random spans.

Each function takes a block (a record of `inputs.blocks`) and a seed, picks one
of the block's sentences or all of its text, and chooses the tokens to mask. The
functions are TensorFlow graph code for tf.data, with stateless random numbers,
so that a record is always masked in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf
from jaxtyping import Bool, Float, Int

Block = Mapping[str, tf.Tensor]


class MaskedSentence(NamedTuple):
  """The token ids of a sentence, and whether each is masked."""

  token_ids: Int[tf.Tensor, " s"]
  is_masked: Bool[tf.Tensor, " s"]


# Function that picks a sentence of a block and the tokens to mask in it, with
# the arguments of the functions below. `is_continuation` has, for each id of
# the vocabulary, whether it continues a word.
ChooseMasks: TypeAlias = Callable[..., MaskedSentence]


def _item(
  ranges: Int[tf.Tensor, "n 2"], index: Int[tf.Tensor, ""]
) -> Int[tf.Tensor, " 2"]:
  """Returns one of the ranges, or [0, 0) without any ranges."""
  return tf.pad(ranges, [[0, 1], [0, 0]])[index]


def _random_item(
  ranges: Int[tf.Tensor, "n 2"], draw: Float[tf.Tensor, ""]
) -> Int[tf.Tensor, " 2"]:
  """Returns the range chosen by a number in [0, 1); [0, 0) without ranges."""
  size = tf.shape(ranges)[0]
  index = tf.cast(draw * tf.cast(size, draw.dtype), tf.int32)
  # The product may round up to size.
  return _item(ranges, tf.maximum(tf.minimum(index, size - 1), 0))


def random_sentence(
  block: Block, draw: Float[tf.Tensor, ""]
) -> Int[tf.Tensor, " 2"]:
  """Returns the token range, in the block's body, of a random sentence."""
  return _random_item(block["sentences"], draw)


def without_span_kinds(block: Block, kinds: Sequence[str]) -> Block:
  """Returns the block without its salient spans of these kinds."""
  if not kinds:
    return block
  names = block["salient_span_kinds"]
  is_left = tf.reduce_all(names[:, tf.newaxis] != tf.constant([*kinds]), 1)
  return {
    **block,
    "salient_spans": block["salient_spans"][is_left],
    "salient_span_kinds": names[is_left],
  }


def salient_span(
  block: Block,
  seed: Int[tf.Tensor, " 2"],
  *,
  is_continuation: Bool[tf.Tensor, " v"],
) -> MaskedSentence:
  """Masks one of the block's salient spans (Guu et al. 2020, section 3.4).

  The span is chosen uniformly, and determines the sentence.
  """
  del is_continuation
  spans, sentences = block["salient_spans"], block["sentences"]
  span = _random_item(spans, tf.random.stateless_uniform((), seed))
  begun = tf.math.count_nonzero(sentences[:, 0] <= span[0], dtype=tf.int32)
  sentence = _item(sentences, tf.maximum(begun - 1, 0))
  positions = tf.range(sentence[0], sentence[1])
  return MaskedSentence(
    block["body_ids"][sentence[0] : sentence[1]],
    (span[0] <= positions) & (positions < span[1]),
  )


def _num_masks(length: Int[tf.Tensor, ""], rate: float) -> Int[tf.Tensor, ""]:
  """Returns `rate` of the length, rounded, but at least one if it has any."""
  rounded = tf.cast(tf.round(tf.cast(length, tf.float32) * rate), tf.int32)
  return tf.minimum(tf.maximum(rounded, 1), length)


def random_tokens(
  block: Block,
  seed: Int[tf.Tensor, " 2"],
  *,
  is_continuation: Bool[tf.Tensor, " v"],
  rate: float = 0.15,
) -> MaskedSentence:
  """Masks single tokens at random, "random uniform masks" of REALM's Table 2.

  Their number is as in BERT (Devlin et al. 2019, section 3.1), but all become
  `[MASK]`, because the query must not contain the words that REALM predicts.
  """
  del is_continuation
  draw = tf.random.stateless_uniform((), seed)
  start, limit = tf.unstack(random_sentence(block, draw))
  second_seed = tf.random.fold_in(seed, 1)
  noise = tf.random.stateless_uniform([limit - start], second_seed)
  rank = tf.argsort(tf.argsort(noise))
  return MaskedSentence(
    block["body_ids"][start:limit], rank < _num_masks(limit - start, rate)
  )


def random_spans(
  block: Block,
  seed: Int[tf.Tensor, " 2"],
  *,
  is_continuation: Bool[tf.Tensor, " v"],
  rate: float = 0.15,
  stop_probability: float = 0.2,
  max_words: int = 10,
) -> MaskedSentence:
  """Masks spans of whole words, "random span masks" of REALM's Table 2.

  As in SpanBERT (Joshi et al. 2020, section 3.1), a span begins at a random
  unmasked word and has ℓ words, ℓ ~ Geo(`stop_probability`) of at most
  `max_words`. Spans are added until `rate` of the tokens are masked; the last
  one ends with the word that reaches that number.
  """
  draw = tf.random.stateless_uniform((), seed)
  start, limit = tf.unstack(random_sentence(block, draw))
  token_ids = block["body_ids"][start:limit]
  length = limit - start
  begins_word = ~tf.gather(is_continuation, token_ids)
  # A piece of an overlong sentence may begin inside a word.
  begins_word |= tf.range(length) == 0
  word = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1
  first_token = tf.gather(tf.cast(tf.where(begins_word)[:, 0], tf.int32), word)

  # Span i starts at the word of token anchor[i] and has num_words[i] words.
  # Anchors are the tokens in random order, so the first unmasked anchor is
  # random among all unmasked tokens.
  draws = tf.random.stateless_uniform([2, length], tf.random.fold_in(seed, 1))
  anchor = tf.argsort(draws[0])
  # 1 … max_words, ℓ with probability ∝ p (1 − p)^(ℓ − 1).
  weights = [(1.0 - stop_probability) ** i for i in range(max_words)]
  below = [sum(weights[:i]) / sum(weights) for i in range(1, max_words)]
  num_words = 1 + tf.searchsorted(
    tf.constant(below, tf.float32), draws[1], side="right"
  )
  budget = _num_masks(length, rate)

  def add_span(
    index: tf.Tensor, is_masked: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    first = word[anchor[index]]
    inside = (first <= word) & (word < first + num_words[index])
    new = inside & ~is_masked & ~is_masked[anchor[index]]
    masked_before = tf.cumsum(tf.cast(new, tf.int32), exclusive=True)
    masked_before += tf.math.count_nonzero(is_masked, dtype=tf.int32)
    fits = tf.gather(masked_before, first_token) < budget
    return index + 1, is_masked | (new & fits)

  _, is_masked = tf.while_loop(
    lambda index, is_masked: (
      tf.math.count_nonzero(is_masked, dtype=tf.int32) < budget
    ),
    add_span,
    (0, tf.zeros([length], tf.bool)),
  )
  return MaskedSentence(token_ids, is_masked)


def corrupted_spans(
  block: Block,
  seed: Int[tf.Tensor, " 2"],
  *,
  is_continuation: Bool[tf.Tensor, " v"],
  rate: float = 0.15,
  mean_length: float = 3.0,
) -> MaskedSentence:
  """Masks spans of a block's whole text, with T5's span corruption.

  As in T5's code (Raffel et al. 2020, section 3.1.4), `rate` of the tokens are
  masked, in spans of `mean_length` tokens on average. All partitions into spans
  and gaps with these totals are equally likely.
  """
  del is_continuation
  token_ids = block["body_ids"]
  # A single token is not masked.
  length = tf.maximum(tf.size(token_ids), 2)
  num_masked = tf.minimum(_num_masks(length, rate), length - 1)
  num_spans = tf.cast(
    tf.round(tf.cast(num_masked, tf.float32) / mean_length), tf.int32
  )
  num_spans = tf.minimum(tf.maximum(num_spans, 1), length - num_masked)

  def random_parts(total: tf.Tensor, fold: int) -> tf.Tensor:
    draws = tf.random.stateless_uniform(
      [total - 1], tf.random.fold_in(seed, fold)
    )
    begins_part = tf.argsort(tf.argsort(draws)) < num_spans - 1
    part = tf.cumsum(tf.cast(begins_part, tf.int32))
    return tf.math.bincount(tf.pad(part, [[1, 0]]), minlength=num_spans)

  parts = [random_parts(length - num_masked, 0), random_parts(num_masked, 1)]
  is_masked = tf.repeat(
    tf.tile([False, True], [num_spans]),
    tf.reshape(tf.stack(parts, axis=1), [-1]),
  )
  return MaskedSentence(token_ids, is_masked[: tf.size(token_ids)])
