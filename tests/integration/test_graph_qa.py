"""Open QA over graphs of blocks, by commands."""

import numpy as np
import pytest

import realm_jax
from realm_jax.evaluation.evaluate import evaluate
from tests.integration.commands import Commands, call, losses
from tests.json_lines import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_MODEL = """
from __gin__ import dynamic_registration
from realm_jax.models import bert
from realm_jax.models import graph_reader
include "tests/integration/tiny.gin"
graph_reader.GraphReader.bert = @bert.BertConfig()
graph_reader.GraphReader.joint_length = %JOINT_LENGTH
graph_reader.GraphReader.span_size = 8
READER = @graph_reader.GraphReader()
"""


def test_a_graph_reader_is_trained_evaluated_and_asked(world, tmp_path):
  (tmp_path / "model.gin").write_text(_MODEL)
  commands = Commands(world, str(tmp_path / "model.gin"))
  folder = tmp_path / "run"
  with commands.index_builder(folder):
    commands.train(
      *("graph_qa", folder),
      TRAIN_QUESTIONS=world.question_file,
      NUM_SEEDS=3,
      NUM_READ=6,
      NUM_STEPS=8,
      SAVE_EVERY_STEPS=4,
      LEARNING_RATE=3e-3,
    )
  assert losses(folder)[-1] < losses(folder)[0]
  metrics = call(
    *(evaluate, [str(folder / "config.json"), "gin/runs/eval.gin"]),
    CORPUS_DIR=world.corpus_dir,
    MODEL_DIR=folder,
    OUTPUT_DIR=tmp_path,
    QUESTIONS=world.question_file,
  )
  assert metrics["num_questions"] == 11
  lines = read_lines(tmp_path / "predictions.jsonl")
  run = realm_jax.load(folder)
  (found,) = run.ask([lines[0]["question"]])
  # The seeds of the index come first.
  seeds = run.search_blocks(run.encode([lines[0]["question"]]), 3)
  rows = [hit.block.row for hit in found.hits]
  np.testing.assert_array_equal(rows[:3], seeds.rows[0])
  assert found.answer == lines[0]["prediction"]
