"""Masked words with and without retrieval."""

import dataclasses
import json
import math

import pytest

from realm_jax.evaluation.masked_lm import evaluate_masked_lm
from realm_jax.training.stages.pretraining import Pretraining

pytestmark = pytest.mark.slow


def test_batches_of_any_size_measure_the_same_words(
  run_config, questions, tmp_path
):
  sentences = dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=1_000_003
  )

  def evaluate(batch_size, **settings):
    return evaluate_masked_lm(
      config=run_config,
      data=dataclasses.replace(sentences, batch_size=batch_size),
      stage=Pretraining(num_candidates=4),
      num_batches=24 // batch_size,
      **settings,
    )

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
