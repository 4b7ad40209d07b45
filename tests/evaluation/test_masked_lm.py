"""Masked words with and without retrieval."""

import dataclasses
import json
import math

import pytest

from realm_jax.evaluation.masked_lm import evaluate_masked_lm
from realm_jax.inputs.config import DataConfig
from realm_jax.training.stages.pretraining import Pretraining

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sentences(questions) -> DataConfig:
  return dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=1_000_003
  )


@pytest.fixture(scope="module")
def metrics(run_config, sentences, tmp_path_factory) -> dict:
  output_dir = tmp_path_factory.mktemp("masked")
  metrics = evaluate_masked_lm(
    config=run_config,
    data=sentences,
    stage=Pretraining(num_candidates=4),
    num_batches=3,
    output_dir=output_dir,
  )
  assert json.loads((output_dir / "metrics.json").read_text()) == metrics
  return metrics


def test_the_figures_are_in_their_bounds(metrics):
  assert metrics["num_queries"] == 24
  assert metrics["num_masks"] >= 24
  assert metrics["loss"] > 0
  assert 0 < metrics["null_probability"] < 1
  assert 0 < metrics["candidate_entropy"] < math.log(4)
  for name in ("recall", "masked_accuracy", "masked_accuracy_null"):
    assert 0 <= metrics[name] <= 1
  assert (metrics["checkpoint"], metrics["generation"]) == (0, 0)
  # The loss is per token here.
  assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
  utility = math.log(metrics["perplexity_null"] / metrics["perplexity"])
  assert utility == pytest.approx(metrics["retrieval_utility"], abs=1e-5)


def test_batches_of_any_size_measure_the_same_words(
  run_config, sentences, metrics
):
  in_one_batch = evaluate_masked_lm(
    config=run_config,
    data=dataclasses.replace(sentences, batch_size=24),
    stage=Pretraining(num_candidates=4),
    num_batches=1,
  )
  del in_one_batch["seconds"]
  for name, value in in_one_batch.items():
    assert metrics[name] == pytest.approx(value, abs=1e-4), name
