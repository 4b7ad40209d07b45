"""A beam over links against all paths, and what a reader of paths answers."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation import run as runs
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.config import RunConfig
from realm_jax.models.components import Components
from realm_jax.models.packing import padded_inputs
from realm_jax.models.path_reader import PathReader
from realm_jax.models.path_retriever import PathRetriever, pair_vectors
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.path_search import BeamOverLinks
from realm_jax.training.stages.graph_qa import LinkedBlocks
from tests import linked_world, tiny_world
from tests.models.test_path_retriever import Network, random_values

# Every path of at most two of the twelve blocks.
WIDE = BeamOverLinks(beam=60, max_hops=2, num_seeds=12, num_others=1)


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
  """A run of the linked world, all of whose values are random."""
  world = linked_world.build(tmp_path_factory.mktemp("linked"))
  model_dir = world.directory / "run"
  params = world.save_checkpoint(model_dir, snapshot=0)
  world.build_snapshot(model_dir)
  lengths = {
    "query_length": tiny_world.QUERY_LENGTH,
    "block_length": tiny_world.BLOCK_LENGTH,
  }
  config = RunConfig(
    model_dir,
    world.corpus_dir,
    retriever=tiny_world.RETRIEVER,
    paths=WIDE,
    num_read=6,
    **lengths,
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      runs, "make_mesh", lambda devices: make_mesh(devices=devices[:1])
    )
    run = runs.TrainedRun.load(config)
  bert, joint = run.components.retriever.bert, tiny_world.JOINT_LENGTH
  made = {
    "path_retriever": PathRetriever(bert, joint_length=joint),
    "reader": PathReader(bert, joint_length=joint, span_size=8),
  }
  values = {n: random_values(module, **lengths) for n, module in made.items()}
  return dataclasses.replace(
    run,
    components=Components({**run.components, **made}),
    params={**params, **values},
    asked="question",
  )


def _all_paths(run, query):
  """Each path that may be found for a query, and its log probability."""
  module = run.components["path_retriever"]
  network = Network(module, run.params["path_retriever"])
  number = run.corpus.num_blocks
  tokens = run.gather(np.arange(number))
  w = pair_vectors(
    module,
    run.params["path_retriever"],
    np.repeat(query[None], number, axis=0),
    tokens,
  )
  w = np.asarray(w, np.float64)

  def log_p(h, one):
    return -np.log1p(np.exp(-network.logit(h, one)))

  firsts = np.array([log_p(network.start, one) for one in w])
  found = {}
  for row in range(number):
    h = network.following(network.start, w[row])
    found[row,] = firsts[row] + log_p(h, network.end)
    # A person links to a town; the best first block may come next as well.
    town = [8 + row % 4] if row < 8 else []
    for second in {*town, int(firsts.argmax())} - {row}:
      found[row, second] = firsts[row] + log_p(h, w[second])
  return found


def test_a_wide_beam_finds_the_best_of_all_paths(linked):
  texts = [one["question"] for one in linked_world.questions()[:2]]
  queries = linked.encode(texts)
  found = linked.search(queries, 20)
  for query, paths, scores in zip(
    queries, found.paths.tolist(), found.scores, strict=True
  ):
    expected = _all_paths(linked, query)
    best = sorted(expected, key=lambda path: -expected[path])[:20]
    rows = [tuple(row for row in one if row != NULL_ROW) for one in paths]
    np.testing.assert_allclose(scores, [expected[p] for p in best], atol=1e-5)
    assert {*rows} == {*best}
  np.testing.assert_array_equal(found.rows, found.paths[..., 0])
  # Hidden blocks are on no path.
  hidden = dataclasses.replace(linked, hidden=frozenset({8}))
  assert 8 in found.paths and 8 not in hidden.search(queries, 20).paths
  # Nor does a link lead to blocks that a filter leaves out.
  graphs, people = LinkedBlocks(4), np.arange(12) < 8
  of_people = dataclasses.replace(linked, allowed=people)
  assert graphs.search(linked, queries, 12).rows.max() >= 8
  assert graphs.search(of_people, queries, 12).rows.max() < 8


def test_the_answer_is_of_the_path_that_scores_best(linked):
  (question,) = questions = ["in which land was ada born?"]
  queries = linked.encode(questions)
  hits = linked.hits(linked.search(queries, 6))
  (result,) = ask(linked, questions)
  reader = linked.components.reader
  blocks = linked.gather_hits(hits)
  score = functools.partial(
    reader.apply, num_starts=blocks.shape[-1], method="paths_and_spans"
  )
  inputs = padded_inputs(reader.join(queries, np.asarray(blocks)))
  logits, _ = jax.jit(score)({"params": linked.params["reader"]}, inputs)
  best = int(np.argmax(logits[0]))
  assert [hit.weight for hit in result.hits] == [
    pytest.approx(float(place == best)) for place in range(6)
  ]
  assert {a.block.id for a in result.answers} == {hits[0][best].block.id}
  assert result.text == question
