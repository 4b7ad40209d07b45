"""Answers to one question, and where they stand."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from realm_jax.evaluation.answering import (
  Answerer,
  best_spans,
  locate_answer,
)
from tests import tiny_world

pytestmark = pytest.mark.slow


def test_a_span_inside_a_word_answers_with_the_word(world):
  corpus = world.corpus
  row = next(
    r
    for r in range(corpus.num_blocks)
    if corpus.block(r).body.startswith("Chloë")
  )
  # c ##h ##l ##o ##e: the span is ##l alone. "ë" has two bytes.
  answer = locate_answer(
    corpus, row, start=2, width=1, score=0.0, probability=0.0
  )
  assert answer.text == "Chloë"
  assert (answer.start_byte, answer.limit_byte) == (0, 6)


def test_answers_are_distinct_and_their_probabilities_sum_to_one(answerer):
  answered = answerer.ask("where was Ada born?")
  texts = [answer.text.lower() for answer in answered.answers]
  assert len(texts) == len(set(texts)) > 100
  # Every span of the blocks read was looked at.
  total = sum(answer.probability for answer in answered.answers)
  assert total == pytest.approx(1.0, abs=1e-4)
  scores = [answer.score for answer in answered.answers]
  assert scores == sorted(scores, reverse=True)


def test_answers_are_ranked_by_their_best_span_or_their_probability(answerer):
  config = dataclasses.replace(answerer.config, rank_answers_by="probability")
  summed = Answerer(answerer.model, answerer.generation, config)
  question = "where was Ada born?"
  by_span = answerer.ask(question).answers
  by_probability = summed.ask(question).answers
  # The same answers, of which another is the best one.
  assert set(by_span) == set(by_probability)
  assert by_span[0] != by_probability[0]
  values = [answer.probability for answer in by_probability]
  assert values == sorted(values, reverse=True)


def test_asking_agrees_with_evaluating(answerer, evaluated):
  for line in evaluated[1][:3]:
    answered = answerer.ask(line["question"])
    assert answered.prediction == line["prediction"]
    assert answered.answers[0].score == pytest.approx(
      line["answer"]["score"], abs=1e-4
    )
    names = [
      answerer.corpus.block(row).name for row in answered.ranking.rows.tolist()
    ]
    assert names[:5] == [e["block"] for e in line["evidence"]][:5]


def test_the_best_span_is_that_of_googles_two_choices(answerer, evaluated):
  # ORQA, and Hugging Face after it, choose the block of the best span and the
  # place of the best span apart. Both are of one span, unless two are equal.
  model, words = answerer.model, answerer.corpus.vocabulary
  reader, params = model.models.reader, model.params["reader"]
  read = jax.jit(reader.apply)
  best = jax.jit(functools.partial(best_spans, reader, 1))
  for line in evaluated[1][:3]:
    tokens = words.encode(line["question"])
    query = np.zeros((1, tiny_world.QUERY_LENGTH), np.int32)
    query[0, : len(tokens) + 2] = [words.cls_id, *tokens, words.sep_id]
    ranking = answerer.ask(line["question"]).ranking
    scores = ranking.scores[None, : answerer.config.num_read]
    rows = ranking.rows[None, : answerer.config.num_read]
    candidates = answerer.corpus.gather(rows, tiny_world.BLOCK_LENGTH)
    _, spans = read(
      {"params": params}, query, candidates, np.zeros((1, 1), np.int32)
    )
    totals = np.asarray(spans.logits + scores[:, :, None, None])[0]
    totals = np.where(spans.is_span[0], totals, -np.inf)
    block = totals.max(axis=(1, 2)).argmax()
    # Theirs are in the order of widths, then starts.
    by_width = totals.max(axis=0).T
    width, start = np.unravel_index(by_width.argmax(), by_width.shape)
    place, _, _ = best(params, query, candidates, scores)
    assert int(place[0, 0]) == np.ravel_multi_index(
      (block, start, width), totals.shape
    )


def test_a_question_that_is_too_long_loses_its_end(answerer):
  assert answerer.ask("where was Ada born? " * 20).prediction


def test_a_question_without_words(answerer):
  with pytest.raises(ValueError, match="'  ' has no words"):
    answerer.ask("  ")
