"""Host, step and evaluation choose the same candidates, which are the best."""

import jax
import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.evaluation.run import RunConfig, TrainedRun
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import sharding
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.search_in_step import (
  SearchedBlocks,
  SearchInStep,
  load_blocks,
)
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.state import TrainState
from tests import tiny_world

pytestmark = pytest.mark.slow
STAGES = {
  "as_in_the_paper": Pretraining(num_candidates=4),
  "no_null_block": Pretraining(num_candidates=4, null_block=False),
  "source_stays": Pretraining(num_candidates=4, drop_source=False),
  # The null block takes the place of copies.
  "nothing_spare": Pretraining(num_candidates=24, num_spare=0),
  "current_queries": Pretraining(num_candidates=4, current_queries=True),
}
INDEXES = {
  "exact": ExactConfig(dtype="float32"),
  "faiss": FaissConfig(),
  "bm25": Bm25Config(),
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Corpus:
  return tiny_world.build(tmp_path_factory.mktemp("examples")).corpus


@pytest.fixture(scope="module")
def batch(examples):
  """Masked sentences of the first version of the texts."""
  stream = stream_batches(
    DataConfig(
      corpus_dir=examples.source,
      task="masked_salient_spans",
      batch_size=8,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    )
  )
  found = next(stream)
  stream.close()
  return found


@pytest.fixture(scope="module", params=INDEXES)
def run(request, examples, tmp_path_factory):
  """A run whose corpus is edited, in another order, and has copies."""
  folder = tmp_path_factory.mktemp("searched")
  articles = tiny_world.documents()[::-1]
  articles[3]["text"] += " That was long ago."
  copies = [one | {"id": f"{one['id']}-copy"} for one in articles[5:20]]
  vocab = folder / "vocab.txt"
  vocab.write_text("\n".join(examples.vocabulary.pieces), encoding="utf-8")
  tiny_world.write_corpus(folder, [*articles, *copies], vocab=vocab)
  world = tiny_world.World(folder)
  # The parameters are no longer those of the snapshot.
  world.save_checkpoint(folder / "run", stage=Pretraining())
  world.build_snapshot(folder / "run", index=INDEXES[request.param])
  world.save_checkpoint(
    folder / "run", step=1, seed=1, snapshot=0, stage=Pretraining()
  )
  return TrainedRun.load(
    RunConfig(
      model_dir=folder / "run",
      corpus_dir=world.corpus_dir,
      retriever=tiny_world.RETRIEVER,
      reader=tiny_world.READER,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    )
  )


@pytest.mark.parametrize("name", STAGES)
def test_all_choose_the_same_candidates(run, batch, name):
  stage = STAGES[name]
  retrieval = stage.retrieval
  context, query = run.stage_context(retrieval), batch.array("query")
  evaluated = run.search_as_trained(retrieval, query)
  index, vectors = run.snapshot.index, None
  if index.needs_vectors:
    current = retrieval.current_queries
    vectors = run.embed_tokens(query, current=current)
  number = retrieval.num_searched(run.corpus.num_blocks)
  on_host = index.search(QueryBatch(query, vectors), number)
  by_evaluation, by_host = (
    stage.features(batch, found, context)[0].candidates
    for found in (evaluated, on_host)
  )
  jax.tree.map(np.testing.assert_array_equal, by_evaluation, by_host)
  if isinstance(index, ExactIndex):
    expected = _by_hand(run, batch, vectors, retrieval)
    tokens = run.gather(expected)
    np.testing.assert_array_equal(by_host.tokens, tokens)
    in_step = _by_step(run, batch, stage)
    jax.tree.map(np.testing.assert_array_equal, in_step, by_host)


def _by_hand(run, batch, vectors, retrieval: Retrieval):
  """Rows of the candidates, from the definition, query by query."""
  every = run.snapshot.vectors(np.arange(run.corpus.num_blocks))
  rows = []
  for vector, source in zip(vectors, batch.array("source_hash"), strict=True):
    best = np.argsort(-(every @ vector), kind="stable")
    number = retrieval.num_searched(len(every))
    hashes = run.corpus.content_hashes[best[:number]]
    is_kept = (hashes != source) | (not retrieval.drop_source)
    own = best[:number][is_kept]
    own = [*own[: retrieval.num_kept]]
    own += [NULL_ROW] * (retrieval.num_kept - len(own))
    rows.append([NULL_ROW] * retrieval.null_block + own)
  return np.array(rows)


def _by_step(run, batch, stage):
  """Candidates that a step finds on the devices of the run."""
  retrieval, mesh, index = stage.retrieval, run.mesh, run.snapshot.index
  made, _ = stage.features(batch, None, run.stage_context(retrieval))
  length = run.config.block_length
  number = retrieval.num_searched(run.corpus.num_blocks)
  searched = SearchedBlocks(
    {} if retrieval.current_queries else run.snapshot.query_params,
    index.vectors,
    index.count,
    load_blocks(run.corpus, block_length=length, mesh=mesh),
    index.plan(number, num_queries=len(made.query)),
  )
  search = SearchInStep(run.components.retriever, retrieval, mesh, 1)
  state = TrainState(np.int32(0), run.params, ())
  with jax.set_mesh(mesh):
    _, found, _ = jax.jit(search, static_argnums=3)(
      state, sharding.to_devices(made, mesh), searched, False
    )
  return found.candidates
