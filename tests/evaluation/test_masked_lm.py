"""Masked words with and without retrieval."""

import dataclasses
import functools
import json
import math

import jax
import numpy as np
import pytest

from realm_jax.evaluation import masked_lm
from realm_jax.evaluation.masked_lm import evaluate_masked_lm
from realm_jax.indexes.random import RandomConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.packing import content_numbers
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_rows import Candidates, RowLayout
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch

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
  # The loss is per token here, and nobody asked about another generation.
  assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
  utility = math.log(metrics["perplexity_null"] / metrics["perplexity"])
  assert utility == pytest.approx(metrics["retrieval_utility"], abs=1e-5)
  assert "top_block_changed" not in metrics


def test_what_changes_between_generations(
  world, run_config, sentences, model_dir, metrics, tmp_path
):
  def compared(generation, num_batches=3):
    return evaluate_masked_lm(
      config=run_config,
      data=sentences,
      stage=Pretraining(num_candidates=4),
      num_batches=num_batches,
      previous_generation=generation,
    )

  same = compared(model_dir / "generations" / "00000000", num_batches=1)
  assert (same["top_block_changed"], same["candidates_changed"]) == (0, 0)
  # Random blocks: 3 of 27 are the same by chance.
  world.build_generation(
    model_dir, index=RandomConfig(), generations_dir=tmp_path
  )
  other = compared(tmp_path)
  assert other["loss"] == metrics["loss"]
  assert other["previous_generation"] == 0
  assert 0.8 < other["top_block_changed"] <= 1
  assert 0.75 < other["candidates_changed"] < 1


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


def test_retrieval_counts_by_the_mixture_and_null_alone_by_itself(
  world, params
):
  models = world.models()
  query = np.array([[2, 6, 4, 3]], np.int32)  # [CLS] a word [MASK] [SEP]
  candidates = np.zeros((1, 2, 8), np.int32)
  candidates[0, 0, :3] = [2, 3, 3]
  candidates[0, 1, :6] = [2, 7, 3, 9, 10, 3]
  position = np.array([[2]], np.int32)
  logits, _ = jax.jit(models.reader.apply)(
    {"params": params["reader"]}, query, candidates, position
  )
  vectors = jax.jit(models.retriever.apply)(
    {"params": params["retriever"]}, query, candidates
  )
  probabilities = np.asarray(jax.nn.softmax(logits[0, :, 0]))
  prior = np.asarray(jax.nn.softmax(np.einsum("bd,bkd->bk", *vectors)[0]))
  # The word that both candidates together find most likely is the target.
  mixture = prior @ probabilities
  target = int(mixture.argmax())
  batch = PretrainingBatch(
    query,
    Candidates(candidates, content_numbers(candidates)),
    MaskTargets(
      positions=position,
      token_ids=np.array([[target]], np.int32),
      weights=np.ones((1, 1), np.float32),
    ),
  )
  functions = Pretraining(num_candidates=2).functions(models)
  layout = RowLayout(make_mesh(devices=jax.devices()[:1]))
  measure = functools.partial(masked_lm.weighted_loss, *functions, layout)
  measured = jax.jit(lambda *given: measure(*given).means())(params, batch)
  assert measured["masked_accuracy"] == 1
  assert measured["masked_accuracy_null"] == float(
    probabilities[0].argmax() == target
  )
  assert measured["retrieval_utility"] == pytest.approx(
    np.log(mixture[target]) - np.log(probabilities[0, target]), abs=1e-4
  )
  assert measured["null_probability"] == pytest.approx(prior[0])
