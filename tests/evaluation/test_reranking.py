"""A run with a cross-encoder, whose searches it orders anew."""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.evaluation import masked_sentences
from realm_jax.evaluation.search import search_as_trained
from realm_jax.feedback.log import FeedbackLog
from realm_jax.inputs.batch import Batch
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import CrossEncoder
from realm_jax.serving.service import FeedbackConfig, Logged, Service
from realm_jax.training.encoder_inputs import Candidates
from realm_jax.training.stages.open_qa import OpenQa, OpenQaBatch
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.text_to_text import TextBatch, TextToText
from tests import tiny_world
from tests.feedback.lists import all_lists

_TEXTS = [question["question"] for question in tiny_world.questions()[:3]]


@pytest.fixture(scope="module")
def reranking(run):
  """The world's run with a cross-encoder of random values."""
  words = run.vocabulary
  module = CrossEncoder(
    tiny_world.RETRIEVER.bert, joint_length=tiny_world.JOINT_LENGTH
  ).for_vocabulary(vocab_size=words.size, separator_id=words.sep_id)
  lengths = {
    "query_length": tiny_world.QUERY_LENGTH,
    "block_length": tiny_world.BLOCK_LENGTH,
  }
  init = jax.jit(functools.partial(module.init_parameters, **lengths))
  params = nn.unbox(init(jax.random.key(1)))
  return dataclasses.replace(
    run,
    components=Components({**run.components, "reranker": module}),
    params={**run.params, "reranker": params},
    config=dataclasses.replace(run.config, rerank_depth=6),
  )


def _read(reranking, stage, batch):
  """The batch of a step, as its cross-encoder orders the blocks."""
  encoders = stage.encoders(reranking.components, reranking.params, None)
  return jax.jit(functools.partial(stage.rerank, encoders))(batch)


def test_the_best_are_ordered_by_its_scores_and_the_others_follow(
  run, reranking
):
  queries = run.encode(_TEXTS)
  before, found = run.search(queries, 10), reranking.search(queries, 10)
  # Each pair by itself, padded to the whole length.
  scores = jax.jit(reranking.components["reranker"].apply)(
    {"params": reranking.params["reranker"]},
    queries,
    run.gather(before.rows[:, :6]),
  )
  order = np.argsort(-np.asarray(scores), axis=1)
  expected = np.take_along_axis(before.rows[:, :6], order, axis=1)
  np.testing.assert_array_equal(found.rows[:, :6], expected)
  np.testing.assert_allclose(
    found.scores[:, :6], np.sort(scores, axis=1)[:, ::-1], atol=1e-5
  )
  np.testing.assert_array_equal(found.rows[:, 6:], before.rows[:, 6:])
  # p(z|x) stays the retriever's.
  for ours, theirs in zip(reranking.hits(found), run.hits(before), strict=True):
    by_row = {hit.block.row: (hit.relevance, hit.probability) for hit in ours}
    own = [(hit.score, hit.probability) for hit in theirs]
    wanted = [by_row[hit.block.row] for hit in theirs]
    np.testing.assert_allclose(own, wanted, rtol=1e-6)
  assert (np.diff(found.scores, axis=1) <= 0).all()
  # Of fewer blocks than it orders, the best are returned.
  few = reranking.search(queries, 2)
  np.testing.assert_array_equal(few.rows, expected[:, :2])
  plain = reranking.restricted(None, rerank=False).search(queries, 10)
  np.testing.assert_array_equal(plain.rows, before.rows)


def test_feedback_is_logged_with_the_scores_of_the_retriever(
  run, reranking, tmp_path
):
  text, *_ = _TEXTS
  before = run.search(run.encode([text]), run.corpus.num_blocks)
  scores = dict(zip(before.rows[0], before.scores[0], strict=True))
  with contextlib.closing(FeedbackLog(tmp_path)) as log:
    service = Service(reranking, feedback=FeedbackConfig(log, pool_size=5))
    name = log.new_id()
    (result,) = service.retrieve([Logged(text, name)], 3)
    log.add_rewards([(name, 1.0)])
  ((served, *_),) = all_lists(tmp_path)
  rows = run.corpus.rows_of(served.blocks)
  expected = [scores[row] for row in rows.tolist()]
  np.testing.assert_allclose(served.scores, expected, rtol=1e-5)
  assert [block["row"] for block in result["blocks"]] == rows[:3].tolist()
  found = reranking.search(run.encode([text]), 5)
  np.testing.assert_array_equal(rows, found.rows[0])


def test_a_step_reads_what_the_run_finds(reranking):
  queries = reranking.encode(_TEXTS)
  stage = TextToText(num_read=4, rerank_depth=6)
  found = search_as_trained(
    reranking, stage, Batch({"query": queries}, {}, np.arange(3), np.arange(3))
  )
  # Of the last query, copies of its source have left five blocks.
  rows = found.rows.copy()
  rows[2, 5] = NULL_ROW
  batch = TextBatch(
    queries,
    Candidates.of(reranking.gather(rows), 1 + rows[..., None]),
    queries,
    queries,
  )
  read = _read(reranking, stage, batch).candidates
  expected = reranking.search(queries, 6).rows.tolist()
  if found.rows[2, 5] in expected[2]:
    expected[2].remove(found.rows[2, 5])
  expected = np.array([own[:4] for own in expected])
  np.testing.assert_array_equal(read.passages[..., 0], 1 + expected)
  np.testing.assert_array_equal(read.tokens, reranking.gather(expected))
  # It decides what is read, and p(z|x) is the retriever's: nothing else has it.
  assert stage.frozen == ("reranker",)


def test_a_step_of_open_qa_points_at_what_the_run_finds(reranking):
  queries = reranking.encode(_TEXTS)
  stage = OpenQa(num_searched_blocks=8, num_read=4, rerank_depth=6)
  example = Batch({"query": queries}, {}, np.arange(3), np.arange(3))
  rows = search_as_trained(reranking, stage, example).rows
  batch = OpenQaBatch(
    query=queries,
    retrieved=rows[..., None].astype(np.float32),
    blocks=reranking.gather(rows[:, :6]),
    has_answer=rows % 2 == 0,
    is_answer=rows[:, :6, None, None] % 2 == 0,
  )
  made = _read(reranking, stage, batch)
  expected = reranking.search(queries, 8).rows
  np.testing.assert_array_equal(made.retrieved[..., 0], expected)
  np.testing.assert_array_equal(made.has_answer, expected % 2 == 0)
  np.testing.assert_array_equal(
    made.is_answer[..., 0, 0], expected[:, :4] % 2 == 0
  )
  np.testing.assert_array_equal(made.blocks, reranking.gather(expected[:, :4]))


def test_a_step_of_pretraining_reads_what_the_run_finds(reranking):
  queries = reranking.encode(_TEXTS)
  stage = Pretraining(num_candidates=4, rerank_depth=6, drop_source=False)
  example = Batch({"query": queries}, {}, np.arange(3), np.arange(3))
  rows = search_as_trained(reranking, stage, example).rows
  # Of the last query, copies of its source have left five blocks.
  rows = np.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)
  left_out, rows[2, 6] = rows[2, 6], NULL_ROW
  batch = PretrainingBatch(
    queries, Candidates(reranking.gather(rows), rows.astype(np.uint32)), None
  )
  read = _read(reranking, stage, batch).candidates
  expected = reranking.search(queries, 6).rows.tolist()
  if left_out in expected[2]:
    expected[2].remove(left_out)
  expected = np.array([[NULL_ROW, *own[:3]] for own in expected])
  np.testing.assert_array_equal(read.tokens, reranking.gather(expected))
  np.testing.assert_array_equal(read.dropout_ids, expected.astype(np.uint32))
  assert stage.frozen == ("reranker",)


def test_a_masked_sentence_is_read_as_the_run_was_pretrained(reranking):
  (query,) = reranking.encode(["Ada was born in Velt in 1900."])
  positions = np.array([5], np.int32)
  for asked, expected in (
    ("masked sentence", reranking),
    # An import, whose cross-encoder was trained on questions.
    (None, reranking.restricted(None, rerank=False)),
  ):
    run = dataclasses.replace(reranking, asked=asked)
    number = run.config.num_candidates - 1
    found = expected.search(query[None], number, current=False).rows[0]
    rows = masked_sentences.read_masks(run, query, positions).rows
    assert {*rows.tolist()} == {NULL_ROW, *found.tolist()}


def test_blocks_with_the_masked_words_are_not_chosen_again():
  with pytest.raises(RealmError, match="READ_GOLD"):
    Pretraining(rerank_depth=10, read_gold=True)
