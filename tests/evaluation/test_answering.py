"""Answers to one question, and where they stand."""

import pytest

from realm_jax.evaluation.answering import load_answerer, locate_answer
from tests import tiny_world


@pytest.fixture(scope="module")
def answerer(run):
  return load_answerer(**run, reader=tiny_world.READER, num_spans=10_000)


def test_a_span_inside_a_word_answers_with_the_word(world):
  corpus = world.corpus
  row = next(
    r for r in range(corpus.num_blocks) if corpus.body(r).startswith("Chloë")
  )
  # c ##h ##l ##o ##e: the span is ##l alone. "ë" has two bytes.
  answer = locate_answer(corpus, row, start=2, width=1)
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


def test_asking_agrees_with_evaluating(answerer, evaluated):
  for line in evaluated[1][:3]:
    answered = answerer.ask(line["question"])
    assert answered.prediction == line["prediction"]
    assert answered.answers[0].score == pytest.approx(
      line["answer"]["score"], abs=1e-4
    )
    names = [answerer.corpus.block_name(row) for row in answered.ranking.rows]
    assert names[:5] == [e["block"] for e in line["evidence"]][:5]


def test_a_question_that_is_too_long_loses_its_end(answerer):
  assert answerer.ask("where was Ada born? " * 20).prediction


def test_a_question_without_words(answerer):
  with pytest.raises(ValueError, match="'  ' has no words"):
    answerer.ask("  ")
