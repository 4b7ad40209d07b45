"""The retriever's vectors against numpy, and which parameters make them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models import sequences
from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.models.retriever import (
  Retriever,
  query_tower_parameters,
  relevance,
)
from tests.models import numpy_bert
from tests.models.numpy_bert import CLS, SEP, padded

CONFIG = BertConfig(
  vocab_size=23,
  separator_id=SEP,
  hidden_size=8,
  num_layers=1,
  num_heads=2,
  intermediate_size=12,
  max_positions=16,
)
ROWS = [[CLS, 7, SEP], [CLS, 8, SEP, 9, 10, 11, SEP], [CLS, SEP, SEP]]
TOKENS = padded(ROWS, 8)


@functools.partial(jax.jit, static_argnames=("retriever", "method"))
def _embed(retriever, params, token_ids, method="embed_blocks"):
  return retriever.apply({"params": params}, token_ids, method=method)


def _parameters(retriever, seed=0):
  shapes = jax.eval_shape(
    lambda: retriever.init(jax.random.key(0), TOKENS, TOKENS)
  )
  return numpy_bert.random_parameters(nn.unbox(shapes["params"]), seed=seed)


def _by_hand(tokens, params, retriever):
  hidden = numpy_bert.encode(tokens, params["encoder"], CONFIG)
  params = numpy_bert.as_float64(params)
  if retriever.pooling == "mean":
    pooled = hidden.mean(axis=0)
  else:
    pooled = hidden[0]
  if retriever.pooling == "pooler":
    pooled = np.tanh(numpy_bert.dense(pooled, params["pooler"]))
  if retriever.projection_size is not None:
    pooled = numpy_bert.layer_norm(
      numpy_bert.dense(pooled, params["projection"]),
      params["projection_norm"],
      retriever.projection_norm_eps,
    )
  if retriever.normalize:
    pooled = pooled / np.linalg.norm(pooled)
  return pooled


@pytest.mark.parametrize(
  "choices",
  [
    {"pooling": "pooler"},
    {"pooling": "cls", "projection_norm_eps": 1e-3},
    {"pooling": "mean", "normalize": True},
    {"pooling": "cls", "projection_size": None},
  ],
)
def test_vectors_equal_those_of_numpy(choices):
  retriever = Retriever(CONFIG, **{"projection_size": 5, **choices})
  params = _parameters(retriever)
  vectors = _embed(retriever, params, TOKENS)
  assert vectors.shape == (3, retriever.vector_size)
  for vector, tokens in zip(vectors, ROWS, strict=True):
    np.testing.assert_allclose(
      vector, _by_hand(tokens, params["tower"], retriever), atol=1e-5
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


def test_candidates_are_embedded_as_single_blocks_are():
  retriever = Retriever(CONFIG, projection_size=5)
  params = _parameters(retriever)
  candidates = np.stack([TOKENS, TOKENS[::-1]])
  vectors = _embed(retriever, params, candidates)
  assert vectors.shape == (2, 3, 5)
  single = _embed(retriever, params, TOKENS)
  np.testing.assert_allclose(vectors[0], single, atol=1e-6)
  np.testing.assert_allclose(vectors[1], single[::-1], atol=1e-6)


def test_separate_towers_have_parameters_of_their_own():
  retriever = Retriever(CONFIG, projection_size=5, shared_towers=False)
  params = _parameters(retriever)
  assert set(params) == {"query_tower", "block_tower"}
  for method, tower in [
    ("embed_queries", "query_tower"),
    ("embed_blocks", "block_tower"),
  ]:
    np.testing.assert_allclose(
      _embed(retriever, params, TOKENS, method)[1],
      _by_hand(ROWS[1], params[tower], retriever),
      atol=1e-5,
    )


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
