"""Variants of the stages and the baselines, trained for a few steps."""

import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import MODEL_FILE, call
from tests.json_lines import write_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def test_a_reader_learns_from_a_corpus_that_nobody_searches(
  commands, world, tmp_path
):
  rows = [{**row, "title": ""} for row in tiny_world.documents()]
  build_corpus(
    [str(write_lines(tmp_path / "text.jsonl", rows))],
    tmp_path / "news",
    vocab=str(world.corpus_dir / "vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH,
  )
  settings = {"PRETRAINING_CORPUS_DIR": str(tmp_path / "news")}
  run = tmp_path / "run"
  commands.train("reading", run, NUM_STEPS=2, HELD_OUT_BLOCKS=2, **settings)
  metrics = read_rows(run)[-1]
  assert 0 <= metrics["masked_accuracy"] <= 1
  assert metrics["loss"] > 0
  # The order of the data depends on how many blocks there are.
  with pytest.raises(CheckpointError, match=r"held_out_blocks=2, not 0"):
    commands.train("reading", run, NUM_STEPS=4, HELD_OUT_BLOCKS=0, **settings)


def _train_baseline(name, world, model_dir, **bindings):
  config = call(
    TrainConfig,
    [f"gin/baselines/{name}.gin", MODEL_FILE],
    MODEL_DIR=model_dir,
    CORPUS_DIR=world.corpus_dir,
    INITIAL_READER=model_dir.parent / "imported",
    NUM_STEPS=2,
    BATCH_SIZE=8,
    **bindings,
  )
  assert trainer.train(config).step == 2
  return read_rows(model_dir)


def test_hard_em_over_bm25(world, tmp_path):
  imported, model_dir = tmp_path / "imported", tmp_path / "run"
  world.save_checkpoint(imported)
  world.build_snapshot(
    imported, index=Bm25Config(), snapshots_dir=model_dir / "snapshots"
  )
  rows = _train_baseline(
    "hard_em",
    world,
    model_dir,
    TRAIN_QUESTIONS=world.question_file,
    NUM_READ=3,
  )
  assert rows[0]["reader_loss"] > 0
  # Scores of BM25, times the only parameter of the retriever.
  assert rows[0]["retriever_loss"] > 0


def test_closed_book_trains_and_is_evaluated_without_an_index(world, tmp_path):
  model_dir = tmp_path / "run"
  world.save_checkpoint(tmp_path / "imported")
  rows = _train_baseline("no_retrieval", world, model_dir)
  # The null block is all.
  assert [row["retrieval_utility"] for row in rows] == [0, 0]
  assert [row["null_probability"] for row in rows] == [1, 1]
  metrics = call(
    evaluate,
    ["gin/runs/eval_masked.gin", MODEL_FILE],
    MODEL_DIR=model_dir,
    CORPUS_DIR=world.corpus_dir,
    NUM_CANDIDATES=1,
    NUM_BATCHES=1,
    BATCH_SIZE=8,
  )
  assert metrics["perplexity"] == metrics["perplexity_null"] > 1
  assert metrics["num_blocks"] == world.corpus.num_blocks
  assert "snapshot" not in metrics
  assert not (model_dir / "snapshots").exists()


def test_inverse_cloze_learns_from_what_its_snapshot_retrieves(
  commands, tmp_path
):
  with commands.index_builder(tmp_path):
    commands.train(
      "inverse_cloze",
      tmp_path,
      NUM_STEPS=2,
      NUM_HARD_NEGATIVES=2,
      NUM_MICROBATCHES=2,
    )
  rows = read_rows(tmp_path)
  assert [row["snapshot"] for row in rows] == [0, 0]
  assert all(row["loss"] > 0 for row in rows)
  assert [row["staleness_steps"] for row in rows] == [0, 1]
