"""The path retriever against its formulas, computed one passage at a time."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models import sequences
from realm_jax.models.path_retriever import PathRetriever, pair_vectors
from tests.training import tiny

HOPS, PASSAGES = 2, 4


@pytest.fixture(scope="module")
def made():
  """A module with values that are nowhere 0 or 1, and its inputs."""
  bert = tiny.components()["reranker"].bert
  module = PathRetriever(bert, joint_length=tiny.JOINT)
  rng = np.random.default_rng(0)
  boxed = module.init_parameters(
    jax.random.key(0), query_length=tiny.QUERY, block_length=tiny.BLOCK
  )
  params = jax.tree.map(
    lambda x: x + rng.normal(0, 0.3, x.shape).astype("f4"), nn.unbox(boxed)
  )
  batch = tiny.batch("reranking")
  blocks = np.concatenate([batch.blocks, batch.blocks[:, :1]], axis=1)
  return module, params, batch.query, blocks


def _expected(module, params, query, blocks):
  """Logits [b, t, n + 1] in float64, from the pairs' vectors."""
  values = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  layer, norm = values["recurrence"], values["end_norm"]
  e = values["end"]
  e = (e - e.mean()) / np.sqrt(e.var() + module.bert.layer_norm_eps)
  e = e * norm["scale"] + norm["bias"]

  def scaled(a):
    return values["scale"][0] * a / np.sqrt((a * a).sum())

  logits = np.zeros((len(query), HOPS + 1, PASSAGES + 1))
  for b, question in enumerate(query):
    w = [
      *np.float64(
        [
          pair_vectors(module, params, question[None], block[None])[0]
          for block in blocks[b]
        ]
      ),
      e,
    ]
    h = scaled(values["start"])
    for t in range(HOPS + 1):
      logits[b, t] = [h @ one + values["bias"][0] for one in w]
      a = np.concatenate([h, w[t]]) @ layer["kernel"] + layer["bias"]
      h = scaled(a)
  return logits


def test_each_step_follows_the_formulas(made):
  module, params, query, blocks = made
  pairs = sequences.padded(module.join(query, blocks).token_ids)
  found = module.apply(
    {"params": params},
    pairs,
    num_passages=PASSAGES,
    num_hops=HOPS,
    method="path_logits",
  )
  expected = _expected(*made)
  np.testing.assert_allclose(found, expected, atol=2e-5)
  # The steps differ: what was chosen changes what is scored.
  assert np.abs(np.diff(expected, axis=1)).max() > 0.1
