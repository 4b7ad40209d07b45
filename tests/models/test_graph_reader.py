"""The layers of a graph reader, against loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from realm_jax.models.bert import BertConfig
from realm_jax.models.graph_reader import GraphInputs, GraphReader
from realm_jax.models.packing import padded_inputs

_SIZE, _NODES = 8, 5


def _reader() -> GraphReader:
  bert = BertConfig(
    vocab_size=30,
    separator_id=3,
    hidden_size=_SIZE,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=24,
    init_stddev=0.3,
  )
  return GraphReader(
    bert, joint_length=16, span_size=4, max_answer_width=2, num_edge_kinds=3
  )


def _params(reader: GraphReader):
  """Random parameters, for which nothing is compiled."""
  init = functools.partial(
    reader.init_parameters, query_length=4, block_length=8
  )
  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  rng = np.random.default_rng(2)
  return jax.tree.map(
    lambda leaf: jnp.float32(rng.normal(0.1, 0.3, leaf.shape)), shapes
  )


def test_layers_equal_loops_over_edges():
  reader = _reader()
  params = _params(reader)
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(2, _NODES, _SIZE)).astype(np.float32)
  edges = rng.integers(0, 5, (2, _NODES, _NODES)) * (
    rng.random((2, _NODES, _NODES)) < 0.4
  )
  # Nothing leads to the last passage, or from it.
  edges[:, -1] = edges[:, :, -1] = 0
  inputs = jnp.asarray(vectors), jnp.asarray(edges)
  fuse = jax.jit(functools.partial(reader.apply, method="fused"))
  fused = fuse({"params": params}, *inputs)
  known = jax.tree.map(np.float64, params)

  def linear(name, x):
    return x @ known[name]["kernel"] + known[name]["bias"]

  for graph, kinds, result in zip(vectors, edges, fused, strict=True):
    nodes = [*np.float64(graph)]
    for layer in range(reader.graph_layers):
      starts, ends = known["relations"][layer]
      after = []
      for i, node in enumerate(nodes):
        messages = []
        for j, other in enumerate(nodes):
          # Kinds beyond the last that is known count as it.
          outward, inward = min(kinds[i, j], 3), min(kinds[j, i], 3)
          if outward or inward:
            pair = linear(f"own_{layer}", node) + linear(
              f"other_{layer}", other
            )
            pair = pair + (starts[outward] if outward else 0)
            pair = pair + (ends[inward] if inward else 0)
            messages.append(np.maximum(pair, 0))
        message = np.mean(messages, axis=0) if messages else np.zeros(_SIZE)
        whole = node + linear(f"out_{layer}", message)
        norm = known[f"norm_{layer}"]
        scaled = (whole - whole.mean()) / np.sqrt(
          whole.var() + reader.bert.layer_norm_eps
        )
        after.append(scaled * norm["scale"] + norm["bias"])
      nodes = after
    np.testing.assert_allclose(result, nodes, atol=2e-6)


def test_an_edge_changes_the_spans_of_both_its_ends_alone():
  reader = _reader()
  params = _params(reader)
  rng = np.random.default_rng(1)
  query = np.array([[2, 7, 8, 3]], np.int32)
  blocks = rng.integers(5, 30, (1, 4, 8)).astype(np.int32)
  blocks[..., 0], blocks[..., 2], blocks[..., -1] = 2, 3, 3

  @jax.jit
  def spans(edges):
    inputs = GraphInputs(reader.join(query, blocks), jnp.asarray(edges))
    return reader.apply(
      {"params": params},
      padded_inputs(inputs),
      num_starts=8,
      method="graph_spans",
    ).logits[0]

  none = np.zeros((1, 4, 4), np.int32)
  edges = none.copy()
  edges[0, 1, 2] = 1
  changed = np.abs(spans(edges) - spans(none)).max(axis=(1, 2)) > 1e-6
  np.testing.assert_array_equal(changed, [False, True, True, False])
