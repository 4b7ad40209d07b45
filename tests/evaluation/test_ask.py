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
  (result,) = ask(run, [line["question"]])
  explained = explain(run, line["question"])
  told = Service(run).explain(line["question"])
  assert line["prediction"] == result.answer
  assert result.answer == explained.answer == told["answer"]
  for other in (
    line["answer"]["probability"],
    explained.probability,
    explain(run, line["question"], result.answer).probability,
    told["probability"],
  ):
    assert other == pytest.approx(result.probability, rel=1e-4)
  # What is told of the blocks multiplies to the answer's parts.
  for hit in explained.hits:
    part = hit.share * result.probability
    assert hit.weight * hit.likelihood == pytest.approx(part)


def test_all_probabilities_are_parts_of_one_softmax(run_with):
  run = run_with(num_spans=10_000)
  (result,) = ask(run, [_QUESTION])
  found = run.search(run.encode([_QUESTION]), 5)
  query, blocks = run.encode([_QUESTION]), run.gather(found.rows)
  logits = jax.jit(run.components.reader.apply)(
    {"params": run.params["reader"]}, query, blocks, np.zeros((1, 1), np.int32)
  )[1]
  totals = np.asarray(logits.logits)[0] + found.scores[0][:, None, None]
  odds = np.where(logits.is_span[0], np.exp(np.float64(totals)), 0)
  joint = odds / odds.sum()
  weights = [hit.weight for hit in result.hits]
  np.testing.assert_allclose(weights, joint.sum(axis=(1, 2)), rtol=1e-4)
  texts = [answer.text.lower() for answer in result.answers]
  assert len(texts) == len(set(texts)) > 100
  assert sum(a.probability for a in result.answers) == pytest.approx(1)
  parts = np.sum(
    [np.multiply(a.shares, a.probability) for a in result.answers], axis=0
  )
  np.testing.assert_allclose(parts, weights, rtol=1e-4)
  for k, hit in enumerate(result.hits):
    own, best = joint[k] / joint[k].sum(), hit.best
    assert best.probability == pytest.approx(own.max(), rel=1e-4)
    assert hit.block.text[best.start : best.limit] == best.text
  values = [answer.probability for answer in result.answers]
  assert values == sorted(values, reverse=True)


def test_an_answer_that_is_asked_about_is_looked_for_in_all_spans(run_with):
  (result,) = ask(run_with(num_spans=1), [_QUESTION], answer="the TARN")
  (best,) = result.answers
  assert result.answer == "the TARN" and result.answer_is_given
  assert 0 < result.probability < best.probability
  assert sum(hit.share for hit in result.hits) == pytest.approx(1)
