"""What evaluations of the tiny world's run need and give."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from realm_jax.evaluation.answering import (
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.open_qa import evaluate_open_qa
from realm_jax.inputs.config import DataConfig
from tests import tiny_world
from tests.evaluation.lines import read_lines


@pytest.fixture(scope="session")
def answerer(source) -> Answerer:
  """An answerer that groups all spans of the blocks read."""
  return load_answerer(source, AnsweringConfig(num_spans=10_000))


@pytest.fixture(scope="session")
def questions(world) -> DataConfig:
  """The world's questions, eight in a batch."""
  return DataConfig(
    task="open_qa",
    split="test",
    corpus_dir=world.corpus_dir,
    question_files={"test": world.question_file},
    batch_size=8,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )


@pytest.fixture(scope="session")
def evaluate(source, questions) -> Callable[..., dict]:
  """`evaluate(**changes)` evaluates open QA on the world's questions.

  Each change is one of a field of the configurations, or an argument.
  """

  def call(**changes) -> dict:
    def changed(config):
      names = {field.name for field in dataclasses.fields(config)}
      own = {n: changes.pop(n) for n in names & changes.keys()}
      return dataclasses.replace(config, **own)

    return evaluate_open_qa(
      source=changed(source),
      data=changed(questions),
      answering=changed(AnsweringConfig()),
      **changes,
    )

  return call


@pytest.fixture(scope="session")
def evaluated(evaluate, tmp_path_factory) -> tuple[dict, list[dict]]:
  """The metrics and the lines of predictions of one evaluation."""
  output_dir = tmp_path_factory.mktemp("evaluated")
  metrics = evaluate(output_dir=output_dir)
  assert json.loads((output_dir / "metrics.json").read_text()) == metrics
  return metrics, read_lines(output_dir / "predictions.jsonl")
