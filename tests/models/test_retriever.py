"""Vectors and scores, their parameters and their precision.

That they are those of transformers is shown in `tests/weights`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models import sequences
from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import (
  Retriever,
  query_tower_parameters,
  relevance,
)

CLS, SEP = 2, 3
CONFIG = BertConfig(
  vocab_size=23,
  separator_id=SEP,
  hidden_size=8,
  num_layers=1,
  num_heads=2,
  intermediate_size=12,
  max_positions=16,
)
TOKENS = np.array(
  [
    [CLS, 7, SEP, 0, 0, 0, 0],
    [CLS, 8, SEP, 9, 10, 11, SEP],
    [CLS, SEP, SEP, 0, 0, 0, 0],
  ],
  np.int32,
)


@functools.partial(jax.jit, static_argnames=("retriever", "method"))
def _embed(retriever, params, token_ids, method="embed_blocks"):
  return retriever.apply({"params": params}, token_ids, method=method)


def _parameters(retriever):
  shapes = jax.eval_shape(
    lambda: retriever.init(jax.random.key(0), TOKENS, TOKENS)
  )
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32),
    nn.unbox(shapes["params"]),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dropout_rate", "remat_policy"),
  [(0.0, None), (0.5, "nothing_saveable")],
)
def test_the_last_layer_at_the_first_token_alone_changes_nothing(
  dropout_rate, remat_policy
):
  config = dataclasses.replace(
    CONFIG, num_layers=2, dropout_rate=dropout_rate, remat_policy=remat_policy
  )
  encoder = BertEncoder(config)
  inputs = sequences.padded(jnp.asarray(TOKENS))
  params = nn.unbox(jax.jit(encoder.init)(jax.random.key(0), inputs))

  @functools.partial(jax.jit, static_argnames="first_only")
  def encode(first_only):
    return encoder.apply(
      params,
      inputs,
      first_only=first_only,
      rngs={"dropout": jax.random.key(1)},
    )

  first = encode(first_only=True)
  assert first.shape == (3, 1, 8)
  np.testing.assert_allclose(first, encode(first_only=False)[:, :1], atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_the_query_tower_alone_embeds_queries(shared):
  retriever = Retriever(CONFIG, projection_size=5, shared_towers=shared)
  params = _parameters(retriever)
  alone = query_tower_parameters(retriever, params)
  assert len(alone) == 1
  np.testing.assert_array_equal(
    _embed(retriever, alone, TOKENS, "embed_queries"),
    _embed(retriever, params, TOKENS, "embed_queries"),
  )


def test_relevance_by_hand():
  queries = jnp.array([[1.0, 2.0], [0.0, -1.0]])
  blocks = jnp.array([[[3.0, 1.0], [0.0, 0.5]], [[7.0, 2.0], [1.0, 0.0]]])
  np.testing.assert_allclose(
    relevance(queries, blocks), [[5.0, 1.0], [-2.0, 0.0]]
  )
  np.testing.assert_allclose(
    relevance(queries, blocks, score_scale=10.0), [[50.0, 10.0], [-20.0, 0.0]]
  )


def test_scores_are_float32_in_mixed_precision():
  # The losses are sums of their exponentials and logarithms.
  bert = dataclasses.replace(CONFIG, dtype=jnp.bfloat16, max_positions=24)
  reader = Reader(bert, joint_length=14, span_size=6, max_answer_width=3)
  given = jax.random.key(0), TOKENS, TOKENS[:, None], np.ones((3, 2), np.int32)
  (logits, spans), _ = jax.eval_shape(lambda: reader.init_with_output(*given))
  assert logits.dtype == spans.logits.dtype == jnp.float32
  vectors, _ = jax.eval_shape(
    lambda: Retriever(bert).init_with_output(*given[:3])
  )
  assert {one.dtype for one in vectors} == {jnp.dtype(jnp.float32)}
