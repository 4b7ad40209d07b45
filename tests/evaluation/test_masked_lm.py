"""Masked words with and without retrieval."""

import contextlib
import dataclasses
import json
import math
import re

import pytest

from realm_jax.evaluation import masked_lm, parts
from realm_jax.training.stages.pretraining import Pretraining
from tests.counted_searches import BrokenOffError

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(run_config, questions):
  """`evaluate(batch_size, …)` evaluates 24 sentences."""
  sentences = dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=1_000_003
  )

  def call(batch_size, **settings):
    return masked_lm.evaluate_masked_lm(
      config=run_config,
      data=dataclasses.replace(sentences, batch_size=batch_size),
      stage=Pretraining(num_candidates=4),
      num_batches=24 // batch_size,
      **settings,
    )

  return call


def test_batches_of_any_size_measure_the_same_words(evaluate, tmp_path):
  metrics = evaluate(8, output_dir=tmp_path)
  assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
  assert metrics["num_queries"] == 24 <= metrics["num_masks"]
  assert 0 < metrics["null_probability"] < 1
  assert 0 < metrics["candidate_entropy"] < math.log(4)
  assert (metrics["checkpoint"], metrics["snapshot"]) == (0, 0)
  # The loss is per token here.
  assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
  utility = math.log(metrics["perplexity_null"] / metrics["perplexity"])
  assert utility == pytest.approx(metrics["retrieval_utility"], abs=1e-5)

  in_one_batch = evaluate(24)
  del in_one_batch["seconds"]
  for name, value in in_one_batch.items():
    assert metrics[name] == pytest.approx(value, abs=1e-4), name


def test_an_evaluation_that_broke_off_goes_on(evaluate, tmp_path, monkeypatch):
  # Every batch is a part.
  monkeypatch.setattr(parts, "_MAX_LINES", 1)

  searched = []
  search = masked_lm.search_as_trained

  def call(name, limit=math.inf):
    def counted(*given):
      if len(searched) == limit:
        raise BrokenOffError
      searched.append(given)
      return search(*given)

    searched.clear()
    monkeypatch.setattr(masked_lm, "search_as_trained", counted)
    with contextlib.suppress(BrokenOffError):
      evaluate(8, output_dir=tmp_path / name)
    return len(searched)

  def files(name):
    return {
      path.name: re.sub(rb'"seconds": .*', b"", path.read_bytes())
      for path in (tmp_path / name).iterdir()
    }

  assert call("whole") == 3
  assert call("resumed", 2) == 2
  assert not (tmp_path / "resumed" / "metrics.json").exists()
  assert call("resumed") == 1
  assert [*files("whole")] == ["metrics.json"]
  assert files("resumed") == files("whole")
