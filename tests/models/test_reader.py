"""The reader's heads against numpy, on inputs joined by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from tests.models import numpy_bert
from tests.models.numpy_bert import CLS, MASK, SEP, padded

VOCABULARY = 29
CONFIG = BertConfig(
  vocab_size=VOCABULARY,
  separator_id=SEP,
  hidden_size=8,
  num_layers=1,
  num_heads=2,
  intermediate_size=12,
  max_positions=24,
)
MAX_WIDTH = 3
READER = Reader(
  CONFIG, joint_length=14, span_size=6, max_answer_width=MAX_WIDTH
)
QUERIES = [[CLS, 7, MASK, 9, SEP], [CLS, MASK, MASK, SEP]]
NULL = [CLS, SEP, SEP]
BLOCKS = [
  [NULL, [CLS, 20, SEP, 11, 12, 13, 14, SEP], [CLS, SEP, 15, SEP]],
  # The body of the second does not fit: 4 + 11 > 14.
  [NULL, [CLS, SEP, *range(10, 21), SEP], [CLS, 21, 22, SEP, 23, 24, SEP]],
]
POSITIONS = np.array([[2, 0], [1, 2]], np.int32)


@pytest.fixture(scope="module")
def inputs():
  return (
    padded(QUERIES, 6),
    np.stack([padded(row, 14) for row in BLOCKS]),
  )


@pytest.fixture(scope="module")
def params(inputs):
  shapes = jax.eval_shape(
    lambda: READER.init(jax.random.key(0), *inputs, POSITIONS)
  )
  return numpy_bert.random_parameters(nn.unbox(shapes["params"]))


@jax.jit
def _apply(params, query, candidates):
  return READER.apply({"params": params}, query, candidates, POSITIONS)


def _read(params, query, block):
  """Hidden states of the joint input, and the number of body tokens."""
  body = block[block.index(SEP) + 1 : -1]
  body = body[: READER.joint_length - len(query) - 1]
  tokens = [*query, *body, SEP]
  return numpy_bert.encode(tokens, params["encoder"], CONFIG), len(body)


def test_masked_words_are_scored_where_they_stand(params, inputs):
  logits, _ = _apply(params, *inputs)
  assert logits.shape == (2, 3, 2, VOCABULARY)
  head = numpy_bert.as_float64(params["masked_lm_head"])
  table = np.asarray(params["encoder"]["word_embeddings"], np.float64)
  for b, query in enumerate(QUERIES):
    for k, block in enumerate(BLOCKS[b]):
      hidden, _ = _read(params, query, block)
      for m, position in enumerate(POSITIONS[b]):
        x = numpy_bert.gelu(numpy_bert.dense(hidden[position], head["dense"]))
        x = numpy_bert.layer_norm(x, head["norm"], CONFIG.layer_norm_eps)
        np.testing.assert_allclose(
          logits[b, k, m], x @ table.T + head["bias"], atol=2e-5
        )


def test_spans_are_scored_from_their_ends(params, inputs):
  _, spans = _apply(params, *inputs)
  head = numpy_bert.as_float64(params["span_head"])
  size = READER.span_size
  for b, query in enumerate(QUERIES):
    for k, block in enumerate(BLOCKS[b]):
      hidden, body_length = _read(params, query, block)
      projected = numpy_bert.dense(hidden, head["projection"])
      inside = np.zeros(spans.is_span.shape[2:], bool)
      for start in range(body_length):
        for width in range(1, MAX_WIDTH + 1):
          if start + width > body_length:
            continue
          inside[start, width - 1] = True
          first = projected[len(query) + start, :size]
          last = projected[len(query) + start + width - 1, size:]
          x = numpy_bert.layer_norm(
            np.maximum(first + last, 0), head["norm"], READER.span_norm_eps
          )
          np.testing.assert_allclose(
            spans.logits[b, k, start, width - 1],
            numpy_bert.dense(x, head["score"])[0],
            atol=2e-5,
          )
      np.testing.assert_array_equal(spans.is_span[b, k], inside)


def test_scores_are_float32_in_mixed_precision(params, inputs):
  # The losses are sums of their exponentials and logarithms.
  half = READER.clone(bert=dataclasses.replace(CONFIG, dtype=jnp.bfloat16))
  logits, spans = jax.eval_shape(
    lambda: half.apply({"params": params}, *inputs, POSITIONS)
  )
  assert logits.dtype == spans.logits.dtype == jnp.float32
