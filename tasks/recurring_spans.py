"""Span selection without questions: what a sentence lacks is in its block.

One of a block's sentences loses a span that the rest of the block has again
(Ram et al. 2021, arXiv 2101.00438). `gin/runs/span_selection.gin` trains a
reader on these examples before it sees questions.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from realm_jax.inputs.blocks import CorpusSource
from realm_jax.inputs.features import (
  feature_length,
  token_feature,
  wordpieces,
)
from realm_jax.text import recurring_spans
from realm_jax.text.masking import random_sentence, uniform_index


def select_recurring_span(
  blocks: tf.data.Dataset,
  *,
  sequence_length: Mapping[str, int] | None = None,
  max_answer_width: int = 10,
) -> tf.data.Dataset:
  """Makes `query`, `block` and `answer_tokens`, int32[1, w].

  The query is a sentence of the block with one [MASK] for a span of words, and
  `block` is the rest. A sentence without a recurring span gives no example.
  """
  words = wordpieces()
  is_continuation = tf.constant(words.is_continuation)
  is_content = tf.constant(recurring_spans.content_pieces(words))
  num_words = feature_length("query", sequence_length) - 2
  block_length = feature_length("block", sequence_length)
  cls, sep = [words.cls_id], [words.sep_id]

  def to_example(block: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    draws = tf.random.stateless_uniform([2], block["seed"])
    first, limit = tf.unstack(random_sentence(block, draws[0]))
    title, body = block["title_ids"][: block_length - 3], block["body_ids"]
    sentence = body[first:limit][:num_words]
    rest = tf.concat([body[:first], body[limit:]], 0)
    rest = rest[: block_length - 3 - tf.size(title)]
    spans = recurring_spans.recurring_spans(
      sentence,
      rest,
      is_continuation=is_continuation,
      is_content=is_content,
      max_width=max_answer_width,
    )
    chosen = uniform_index(tf.size(spans.start), draws[1])
    # Without a span, the answer has no tokens.
    start = tf.pad(spans.start, [[0, 1]])[chosen]
    end = start + tf.pad(spans.width, [[0, 1]])[chosen]
    return {
      "position": block["position"],
      "query": tf.concat(
        [cls, sentence[:start], [words.mask_id], sentence[end:], sep], 0
      ),
      "block": tf.concat([cls, title, sep, rest, sep], 0),
      "answer_tokens": sentence[start:end][tf.newaxis],
    }

  return blocks.map(to_example, num_parallel_calls=tf.data.AUTOTUNE).filter(
    lambda example: tf.size(example["answer_tokens"]) > 0
  )


seqio.TaskRegistry.add(
  "recurring_spans",
  source=CorpusSource(),
  preprocessors=[select_recurring_span],
  output_features={"query": token_feature(), "block": token_feature()},
)
