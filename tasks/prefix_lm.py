"""Prefix language modeling (T5; Atlas, Izacard et al. 2022, section 2.3).

prefix_lm      a block is split in two at a random word; the first part is the
               query, and the second one the target
continuation   a block is split in half, as RePlug does (Shi et al. 2023,
               arXiv 2301.12652, section 4)
"""

import functools
from collections.abc import Mapping

import numpy as np
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


@tf.autograph.experimental.do_not_convert
def split_block(
  blocks: tf.data.Dataset,
  *,
  in_half: bool = False,
  sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
  """Makes `query`, and the texts `inputs` and `targets`, of each block.

  Splits at the middle word if `in_half`, and otherwise at a random one. A query
  that is too long is truncated. A block with a single word is skipped.
  """
  words, corpus = wordpieces(), current_context().examples
  is_continuation = tf.constant(words.is_continuation)
  num_words = feature_length("query", sequence_length) - 2

  def texts(block_id: np.ndarray, place: np.ndarray) -> tuple[bytes, bytes]:
    (row,) = corpus.rows_of(np.array([block_id])).tolist()
    block = corpus.block(row)
    text, edge = block.text.encode(), block.byte_ranges[place, 0]
    return text[:edge].rstrip(), text[edge:]

  def to_example(block: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    token_ids = block["body_ids"]
    begins_word = ~tf.gather(is_continuation, token_ids[1:])
    places = 1 + tf.cast(tf.where(begins_word)[:, 0], tf.int32)
    draw = 0.5
    if not in_half:
      draw = tf.random.stateless_uniform((), block["seed"])
    number = tf.cast(tf.size(places), tf.float32)
    # The product may round up to the number of positions.
    chosen = tf.minimum(tf.cast(draw * number, tf.int32), tf.size(places) - 1)
    # 0 if there is no position to choose.
    place = tf.concat([[0], places], 0)[chosen + 1]
    inputs, targets = tf.numpy_function(
      texts, [block["block_id"], place], (tf.string, tf.string)
    )
    query = token_ids[: tf.minimum(place, num_words)]
    return {
      "position": block["position"],
      "query": tf.concat([[words.cls_id], query, [words.sep_id]], 0),
      "inputs": tf.ensure_shape(inputs, []),
      "targets": tf.ensure_shape(targets, []),
      "source_id": block["block_id"],
      "source_hash": block["content_hash"],
    }

  return blocks.map(to_example, num_parallel_calls=tf.data.AUTOTUNE).filter(
    lambda example: tf.size(example["query"]) > 2
  )


for _name, _in_half in (("prefix_lm", False), ("continuation", True)):
  seqio.TaskRegistry.add(
    _name,
    source=CorpusSource(),
    preprocessors=[functools.partial(split_block, in_half=_in_half)],
    output_features={
      "query": token_feature(),
      "source_id": plain_feature(tf.int64, rank=0),
      "source_hash": plain_feature(tf.int64, rank=0),
    },
  )
