"""Paths of two articles: their retriever, beam and reader, by the recipes."""

import operator

import pytest

import realm_jax
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests import linked_world
from tests.integration.commands import MODEL_FILE, Commands, call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

# An encoder that can tell in a few hundred steps whether words are the same.
_MODEL = """
from __gin__ import dynamic_registration
from realm_jax.models import bert
from realm_jax.models import {module}
pair/bert.BertConfig.hidden_size = 32
pair/bert.BertConfig.num_layers = 2
pair/bert.BertConfig.num_heads = 2
pair/bert.BertConfig.max_positions = 56
pair/bert.BertConfig.dropout_rate = 0.0
pair/bert.BertConfig.intermediate_size = 64
pair/bert.BertConfig.initialization = "mimetic"
pair/bert.BertConfig.init_stddev = 0.3
{module}.{kind}.bert = @pair/bert.BertConfig()
"""
_SETTINGS = {
  "BATCH_SIZE": 8,
  "LEARNING_RATE": 3e-3,
  "WARMUP_STEPS": 100,
  "TIMEOUT_SECONDS": 300.0,
}


def test_the_recipes_find_paths_and_answer_from_them(tmp_path):
  world = linked_world.build(tmp_path)
  commands, questions = Commands(world), linked_world.questions()

  def train(name, files, module, kind, **settings):
    own = tmp_path / f"{module}.gin"
    own.write_text(_MODEL.format(module=module, kind=kind))
    with commands.index_builder(tmp_path / name):
      trainer.train(
        call(
          TrainConfig,
          [*files, str(own)],
          MODEL_DIR=tmp_path / name,
          CORPUS_DIR=world.corpus_dir,
          TRAIN_QUESTIONS=world.question_file,
          SAVE_EVERY_STEPS=settings["NUM_STEPS"],
          **_SETTINGS,
          **settings,
        )
      )
    return read_rows(tmp_path / name)

  rows = train(
    "retriever",
    [MODEL_FILE, "gin/runs/path_retriever.gin"],
    *("path_retriever", "PathRetriever"),
    NUM_STEPS=400,
    JOINT_LENGTH=56,
    QUERY_LENGTH=16,
    MAX_HOPS=2,
    NUM_NEGATIVES=10,
    NUM_LINKED=1,
    NUM_SEEDS=12,
  )
  assert rows[-1]["path_accuracy"] > 0.9

  def num_found(step):
    """How many questions have their path as the best one."""
    run = realm_jax.load(tmp_path / "retriever", checkpoint_step=step)
    hits = run.retrieve([one["question"] for one in questions])
    titles = [[part.title for part in own[0].block.parts] for own in hits]
    return sum(map(operator.eq, titles, [q["gold_titles"] for q in questions]))

  before, after = map(num_found, (0, 400))
  assert before < 4 < 7 <= after
  rows = train(
    "reader",
    [str(tmp_path / "retriever/config.json"), "gin/runs/path_reading.gin"],
    *("path_reader", "PathReader"),
    INITIAL_CHECKPOINT=tmp_path / "retriever",
    NUM_STEPS=100,
    JOINT_LENGTH=56,
  )
  assert rows[-1]["span_accuracy"] > 0.9 and rows[-1]["path_accuracy"] > 0.9
  metrics = call(
    evaluate,
    ["gin/runs/eval.gin", str(tmp_path / "reader/config.json")],
    MODEL_DIR=tmp_path / "reader",
    CORPUS_DIR=world.corpus_dir,
    QUESTIONS=world.question_file,
    OUTPUT_DIR=tmp_path / "eval",
    NUM_READ=8,
  )
  assert metrics["exact_match"] > 0.8
