"""The baselines of gin/baselines/, trained and evaluated in the tiny world."""

from pathlib import Path

import pytest

from realm_jax.evaluation import evaluate as evaluation_run
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.random import RandomConfig
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import MODEL_FILE, call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def imported(world, tmp_path_factory) -> Path:
  """A checkpoint of both towers and the reader, as an import writes it."""
  model_dir = tmp_path_factory.mktemp("imported")
  world.save_checkpoint(model_dir)
  return model_dir


@pytest.fixture(scope="module")
def config_of(world):
  """`config_of(name, folder)` is the configuration of a baseline."""

  def make(name: str, model_dir: Path, **bindings) -> TrainConfig:
    if name != "no_retrieval":
      bindings["TRAIN_QUESTIONS"] = world.question_file
    return call(
      TrainConfig,
      [f"gin/baselines/{name}.gin", MODEL_FILE],
      MODEL_DIR=model_dir,
      CORPUS_DIR=world.corpus_dir,
      NUM_STEPS=2,
      # One shape is compiled sooner than several.
      PACK=False,
      BATCH_SIZE=8,
      **bindings,
    )

  return make


def _losses(model_dir: Path) -> list[dict]:
  return read_rows(model_dir)


def test_hard_em_reads_what_bm25_finds(world, imported, config_of, tmp_path):
  config = config_of("hard_em", tmp_path, INITIAL_READER=imported, NUM_READ=3)
  world.build_generation(
    imported, index=Bm25Config(), generations_dir=tmp_path / "generations"
  )
  assert trainer.train(config).step == 2
  first, _ = _losses(tmp_path)
  assert first["reader_loss"] > 0
  # Scores of BM25, times the only parameter of the retriever.
  assert first["retriever_loss"] > 0


def test_without_retrieval_the_null_block_is_all(
  world, imported, config_of, tmp_path
):
  config = config_of("no_retrieval", tmp_path, INITIAL_READER=imported)
  world.build_generation(
    imported, index=RandomConfig(), generations_dir=tmp_path / "generations"
  )
  trainer.train(config)
  for row in _losses(tmp_path):
    assert row["retrieval_utility"] == 0
    assert row["null_probability"] == 1
  metrics = call(
    evaluation_run.evaluate,
    ["gin/runs/eval_masked.gin", MODEL_FILE],
    MODEL_DIR=tmp_path,
    CORPUS_DIR=world.corpus_dir,
    OUTPUT_DIR=tmp_path / "eval",
    BATCH_SIZE=8,
    NUM_CANDIDATES=1,
    NUM_BATCHES=1,
  )
  assert metrics["masked_accuracy"] == metrics["masked_accuracy_null"]
  assert metrics["perplexity"] == pytest.approx(metrics["perplexity_null"])
