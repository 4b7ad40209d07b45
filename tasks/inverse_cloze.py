"""Inverse cloze: sentences as queries for their source blocks."""

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
from realm_jax.text.masking import random_sentence


@tf.autograph.experimental.do_not_convert
def inverse_cloze(
  blocks: tf.data.Dataset,
  *,
  sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
  """Makes `query`, a random sentence of a block, and `block`, the rest.

  The sentence is removed from its block with the probability in the task's
  context. If it remains, the retriever learns from shared words. A block whose
  only sentence would be removed is dropped (Lee et al. 2019, section 4). Titles
  remain.
  """
  words = wordpieces()
  removal_probability = current_context().sentence_removal_probability
  query_length = feature_length("query", sequence_length)
  block_length = feature_length("block", sequence_length)
  cls, sep = [words.cls_id], [words.sep_id]

  def to_example(
    block: Mapping[str, tf.Tensor],
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    draws = tf.random.stateless_uniform([2], block["seed"])
    start, limit = tf.unstack(random_sentence(block, draws[0]))
    removed = draws[1] < removal_probability
    title, body = block["title_ids"][: block_length - 3], block["body_ids"]
    query = body[start:limit][: query_length - 2]
    rest = tf.concat([body[:start], body[tf.where(removed, limit, start) :]], 0)
    rest = rest[: block_length - 3 - tf.size(title)]
    example = {
      "position": block["position"],
      "query": tf.concat([cls, query, sep], 0),
      "block": tf.concat([cls, title, sep, rest, sep], 0),
      "removed": removed,
      "source_id": block["block_id"],
      "source_hash": block["content_hash"],
    }
    is_whole = (tf.size(query) > 0) & (tf.size(rest) > 0)
    return is_whole, example

  return (
    blocks.map(to_example, num_parallel_calls=tf.data.AUTOTUNE)
    .filter(lambda is_whole, example: is_whole)
    .map(lambda is_whole, example: example)
  )


seqio.TaskRegistry.add(
  "inverse_cloze",
  source=CorpusSource(),
  preprocessors=[inverse_cloze],
  output_features={
    "query": token_feature(),
    "block": token_feature(),
    "removed": plain_feature(tf.bool, rank=0),
    "source_id": plain_feature(tf.int64, rank=0),
    "source_hash": plain_feature(tf.int64, rank=0),
  },
)
