"""The path retriever against its formulas, computed one passage at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from realm_jax.models import sequences
from realm_jax.models.path_retriever import PathRetriever, pair_vectors
from tests.training import tiny

HOPS, PASSAGES = 2, 4


class Network:
  """The formulas of a path retriever in float64."""

  def __init__(self, module, params):
    self._values = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    norm, e = self._values["end_norm"], self._values["end"]
    e = (e - e.mean()) / np.sqrt(e.var() + module.bert.layer_norm_eps)
    self.end = e * norm["scale"] + norm["bias"]
    self.start = self._scaled(self._values["start"])

  def _scaled(self, a):
    return self._values["scale"][0] * a / np.sqrt((a * a).sum())

  def logit(self, h, w):
    return h @ w + self._values["bias"][0]

  def following(self, h, w):
    layer = self._values["recurrence"]
    joined = np.concatenate([h, w])
    return self._scaled(joined @ layer["kernel"] + layer["bias"])


def random_values(module, *, query_length, block_length):
  """Parameters that are nowhere 0 or 1."""
  rng = np.random.default_rng(0)
  init = functools.partial(
    module.init_parameters, query_length=query_length, block_length=block_length
  )
  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  return jax.tree.map(
    lambda leaf: jnp.float32(rng.normal(0.2, 0.3, leaf.shape)), shapes
  )


def test_each_step_follows_the_formulas():
  bert = tiny.components()["reranker"].bert
  module = PathRetriever(bert, joint_length=tiny.JOINT)
  params = random_values(
    module, query_length=tiny.QUERY, block_length=tiny.BLOCK
  )
  batch = tiny.batch("reranking")
  query = batch.query
  blocks = np.concatenate([batch.blocks, batch.blocks[:, :1]], axis=1)
  logits = module.apply(
    {"params": params},
    sequences.padded(module.join(query, blocks).token_ids),
    num_passages=PASSAGES,
    num_hops=HOPS,
    method="path_logits",
  )
  network = Network(module, params)
  encode = jax.jit(functools.partial(pair_vectors, module))
  expected = np.zeros((len(query), HOPS + 1, PASSAGES + 1))
  for b in range(len(query)):
    vectors = (encode(params, query[b : b + 1], x[None])[0] for x in blocks[b])
    w, h = [*map(np.float64, vectors), network.end], network.start
    for t in range(HOPS + 1):
      expected[b, t] = [network.logit(h, one) for one in w]
      h = network.following(h, w[t])
  np.testing.assert_allclose(logits, expected, atol=2e-5)
  # What was chosen changes what is scored.
  assert np.abs(np.diff(expected, axis=1)).max() > 0.1
