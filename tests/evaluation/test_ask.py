"""Answers to questions, where they stand, and how likely they are."""

import jax
import numpy as np
import pytest

from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.explain import explain
from realm_jax.serving.service import Service
from tests.json_lines import read_lines

pytestmark = pytest.mark.slow

_QUESTION = "where was Ada born?"


def test_everything_names_the_same_answer_with_the_same_probability(
  run, evaluate, tmp_path
):
  evaluate(
    num_spans=50,
    rank_answers_by="probability",
    max_examples=1,
    output_dir=tmp_path,
  )
  (line,) = read_lines(tmp_path / "predictions.jsonl")
  (answered,) = ask(run, [line["question"]])
  explained = explain(run, line["question"])
  told = Service(run).explain(line["question"])
  assert line["prediction"] == answered.text
  assert answered.text == explained.answer == told["answer"]
  probability = np.exp(told["log_likelihood"])
  for other in (
    line["answer"]["probability"],
    explained.probability,
    explain(run, line["question"], answered.text).probability,
    probability,
  ):
    assert other == pytest.approx(answered.probability, rel=1e-4)
  # What is told of the blocks multiplies to the answer's parts.
  for one in explained.candidates:
    part = one.share * probability
    assert one.probability * one.likelihood == pytest.approx(part)


def test_all_probabilities_are_parts_of_one_softmax(run_with):
  run = run_with(num_spans=10_000)
  (answered,) = ask(run, [_QUESTION])
  found = run.search(run.encode([_QUESTION]), 5)
  query, blocks = run.encode([_QUESTION]), run.gather(found.rows)
  logits = jax.jit(run.components.reader.apply)(
    {"params": run.params["reader"]}, query, blocks, np.zeros((1, 1), np.int32)
  )[1]
  totals = np.asarray(logits.logits)[0] + found.scores[0][:, None, None]
  odds = np.where(logits.is_span[0], np.exp(np.float64(totals)), 0)
  joint = odds / odds.sum()
  np.testing.assert_allclose(
    answered.retrieval_probability, joint.sum(axis=(1, 2)), rtol=1e-4
  )
  texts = [answer.text.lower() for answer in answered.answers]
  assert len(texts) == len(set(texts)) > 100
  assert sum(a.probability for a in answered.answers) == pytest.approx(1)
  parts = np.sum(
    [np.multiply(a.shares, a.probability) for a in answered.answers], axis=0
  )
  np.testing.assert_allclose(parts, answered.retrieval_probability, rtol=1e-4)
  for k, alone in enumerate(answered.alone):
    own = joint[k] / joint[k].sum()
    assert alone.probability == pytest.approx(own.max(), rel=1e-4)
    assert alone.block.text[alone.start : alone.limit] == alone.text
  values = [answer.probability for answer in answered.answers]
  assert values == sorted(values, reverse=True)


def test_an_answer_that_is_asked_about_is_looked_for_in_all_spans(run_with):
  (answered,) = ask(run_with(num_spans=1), [_QUESTION], answer="the TARN")
  assert len(answered.answers) == 1
  assert answered.given.text == "Tarn"
  assert 0 < answered.given.probability < answered.probability
  assert sum(answered.given.shares) == pytest.approx(1)
