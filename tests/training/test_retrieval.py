"""Retrieval ahead of the step: what is found, where it lies, and errors."""

import functools

import jax
import numpy as np
import optax
import pytest

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models.retriever import embed_queries, query_tower_parameters
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.retrieval import RetrievalPipeline
from tests.training import tiny

NUM_BLOCKS, DIM, K = 11, 4, 3
TOKENS = np.arange(16, dtype=np.int32).reshape(8, 2) % 5


def _embed(params, token_ids):
  """A query's vector is the sum of its tokens' rows."""
  return params["table"][token_ids].sum(axis=1)


@pytest.fixture(scope="module")
def mesh():
  return make_mesh()


@pytest.fixture
def pipeline(mesh):
  pipeline = RetrievalPipeline(_embed, mesh=mesh)
  yield pipeline
  pipeline.close()


def _world():
  """Whole numbers, so that every sum is exact."""
  rng = np.random.default_rng(0)
  table = rng.integers(-3, 4, (5, DIM)).astype(np.float32)
  vectors = rng.integers(-3, 4, (NUM_BLOCKS, DIM)).astype(np.float32)
  return table, vectors


def _best(table, vectors):
  scores = np.stack([table[row].sum(axis=0) @ vectors.T for row in TOKENS])
  rows = np.argsort(-scores, axis=1, kind="stable")[:, :K]
  return rows, np.take_along_axis(scores, rows, axis=1)


def _assemble(retrieve):
  found = retrieve()
  return found, {"rows": found.rows}, {"recall": 0.5}


class HostIndex:
  """An index that searches on the host, by tokens or by vectors."""

  kind = "host"
  num_blocks = NUM_BLOCKS

  def __init__(self, vectors, *, needs_vectors):
    self.report = {}
    self.vectors = vectors
    self.needs_vectors = needs_vectors
    self.queries = None

  def search(self, queries, k):
    self.queries = queries
    b = len(queries.token_ids)
    rows = np.tile(np.arange(k, dtype=np.int32), (b, 1))
    return SearchResult(rows=rows, scores=-rows.astype(np.float32))


def test_exact_search_finds_the_best_blocks(pipeline, mesh):
  table, vectors = _world()
  index = ExactIndex(vectors, mesh=mesh)
  prepared = pipeline.search(
    TOKENS,
    pipeline.embed(TOKENS, {"table": table}),
    index=index,
    num_blocks=K,
    assemble=_assemble,
  ).result()
  rows, scores = _best(table, vectors)
  np.testing.assert_array_equal(prepared.retrieved.rows, rows)
  np.testing.assert_array_equal(prepared.retrieved.scores, scores)
  # The step's arrays lie over the devices, a row on each.
  np.testing.assert_array_equal(prepared.batch["rows"], rows)
  assert len(prepared.batch["rows"].sharding.device_set) == 8
  assert prepared.metrics["recall"] == 0.5
  assert {"search_ms", "gather_ms"} < prepared.metrics.keys()


def test_an_index_on_the_host_gets_the_vectors(pipeline):
  table, vectors = _world()
  index = HostIndex(vectors, needs_vectors=True)
  queries = pipeline.embed(TOKENS, {"table": table})
  pipeline.search(
    TOKENS, queries, index=index, num_blocks=K, assemble=_assemble
  ).result()
  np.testing.assert_array_equal(index.queries.token_ids, TOKENS)
  np.testing.assert_array_equal(
    index.queries.vectors, np.stack([table[row].sum(axis=0) for row in TOKENS])
  )


def test_an_index_of_words_needs_no_model(pipeline):
  _, vectors = _world()
  index = HostIndex(vectors, needs_vectors=False)
  prepared = pipeline.search(
    TOKENS, None, index=index, num_blocks=K, assemble=_assemble
  ).result()
  assert index.queries.vectors is None
  np.testing.assert_array_equal(prepared.retrieved.rows[0], [0, 1, 2])


def test_a_resumed_step_uses_what_was_found_before(pipeline):
  found = SearchResult(
    rows=np.arange(24, dtype=np.int32).reshape(8, 3),
    scores=np.zeros((8, 3), np.float32),
  )
  prepared = pipeline.reuse(found, _assemble).result()
  np.testing.assert_array_equal(prepared.batch["rows"], found.rows)
  assert prepared.retrieved is found


def test_an_error_in_the_background_reaches_the_loop(pipeline):
  def fail(retrieve):
    raise OSError("disk gone")

  found = SearchResult(rows=TOKENS, scores=TOKENS.astype(np.float32))
  with pytest.raises(OSError, match="disk gone"):
    pipeline.reuse(found, fail).result()


def test_parameters_may_be_divided_over_the_devices():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  retriever, _ = tiny.models()
  embed = functools.partial(embed_queries, retriever)
  update = optax.sgd(1.0)
  params = tiny.state("inverse_cloze", update, mesh)[0].params["retriever"]
  tower = query_tower_parameters(retriever, params)
  assert any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(tower))
  queries = tiny.arrays("inverse_cloze")["query"]
  pipeline = RetrievalPipeline(embed, mesh=mesh)
  vectors = pipeline.embed(queries, tower)
  # Those of a generation are replicated.
  whole = sharding.replicate(jax.device_get(tower), mesh)
  again = pipeline.embed(queries, whole)
  pipeline.close()
  alone = jax.jit(embed)(jax.device_get(tower), queries)
  for found in (vectors, again):
    assert found.sharding.is_equivalent_to(sharding.batch_sharding(mesh), 2)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
