"""Masked sentences for REALM's pre-training, masked in several ways.

    masked_salient_spans   a name or a date (REALM): the salient spans of the
                           corpus, without the kinds UNMASKED_SPAN_KINDS
    masked_random_tokens   single tokens (the paper's Table 2)
    masked_random_spans    spans of words (Table 2, after SpanBERT)
    span_corruption        spans of a whole block (T5, and Atlas' pre-training);
                           QUERY_LENGTH and MAX_MASKS must suffice for a block

For other rates or rules, add a task:

    masked_sentences.add("half_masked", partial(random_tokens, rate=0.5))
"""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from realm_jax.inputs.blocks import CorpusSource
from realm_jax.inputs.config import current_context
from realm_jax.inputs.features import (
  feature_length,
  plain_feature,
  token_feature,
  wordpieces,
)
from realm_jax.text import masking


@tf.autograph.experimental.do_not_convert
def mask_sentence(
  blocks: tf.data.Dataset,
  *,
  choose: masking.ChooseMasks,
  sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
  """Makes `query`, a masked sentence of a block, and its `mask_targets`.

  The length of `mask_targets` limits the number of masks that are scored;
  further ones remain `[MASK]`. As in Google's released pre-training, a sentence
  is skipped if it has no mask, or if its last mask does not fit in the query.
  """
  words = wordpieces()
  unmasked_kinds = current_context().unmasked_span_kinds
  is_continuation = tf.constant(words.is_continuation)
  num_words = feature_length("query", sequence_length) - 2
  max_masks = feature_length("mask_targets", sequence_length)

  def to_example(block: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    token_ids, is_masked = choose(
      masking.without_span_kinds(block, unmasked_kinds),
      block["seed"],
      is_continuation=is_continuation,
    )
    positions = tf.cast(tf.where(is_masked)[:, 0], tf.int32)
    fits = tf.reduce_all(positions < num_words)
    scored = positions[: tf.where(fits, max_masks, 0)]
    masked = tf.where(is_masked, words.mask_id, token_ids)
    return {
      "position": block["position"],
      "query": tf.concat(
        [[words.cls_id], masked[:num_words], [words.sep_id]], 0
      ),
      "mask_positions": scored + 1,
      "mask_targets": tf.gather(token_ids, scored),
      "mask_weights": tf.ones_like(scored, tf.float32),
      "source_id": block["block_id"],
      "source_hash": block["content_hash"],
    }

  return blocks.map(to_example, num_parallel_calls=tf.data.AUTOTUNE).filter(
    lambda example: tf.size(example["mask_positions"]) > 0
  )


def add(name: str, choose: masking.ChooseMasks) -> seqio.Task:
  """Registers a task of masked sentences of the run's corpus with seqio.

  Args:
    name: Name of the task.
    choose: Function that picks a sentence of a block and its masks.
  """
  return seqio.TaskRegistry.add(
    name,
    source=CorpusSource(),
    preprocessors=[functools.partial(mask_sentence, choose=choose)],
    output_features={
      "query": token_feature(),
      "mask_positions": plain_feature(tf.int32, rank=1),
      "mask_targets": token_feature(),
      "mask_weights": plain_feature(tf.float32, rank=1),
      "source_id": plain_feature(tf.int64, rank=0),
      "source_hash": plain_feature(tf.int64, rank=0),
    },
  )


add("masked_salient_spans", masking.salient_span)
add("masked_random_tokens", masking.random_tokens)
add("masked_random_spans", masking.random_spans)
add("span_corruption", masking.corrupted_spans)
