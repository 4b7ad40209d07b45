"""What evaluations of the tiny world's run need and give."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from realm_jax.evaluation.open_qa import evaluate_open_qa
from realm_jax.evaluation.run import TrainedRun
from realm_jax.inputs.config import DataConfig
from tests import tiny_world
from tests.json_lines import read_lines


@pytest.fixture(scope="module", autouse=True)
def _one_device(one_device):
  """What eight do is in `evaluated`, and in tests/integration."""


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
def run_with(run) -> Callable[..., TrainedRun]:
  """`run_with(**changes)` is the run with other settings."""
  return lambda **changes: dataclasses.replace(
    run, config=dataclasses.replace(run.config, **changes)
  )


@pytest.fixture(scope="session")
def evaluate(run_config, questions) -> Callable[..., dict]:
  """`evaluate(**changes)` evaluates open QA on the world's questions.

  Each change is one of a field of the configurations, or an argument. Answers
  are those of the best span, unless a change says otherwise.
  """

  def call(**changes) -> dict:
    changes = {"num_spans": 1, "rank_answers_by": "best_span", **changes}

    def changed(config):
      names = {field.name for field in dataclasses.fields(config)}
      own = {n: changes.pop(n) for n in names & changes.keys()}
      return dataclasses.replace(config, **own)

    return evaluate_open_qa(
      config=changed(run_config), data=changed(questions), **changes
    )

  return call


@pytest.fixture(scope="session")
def evaluated(evaluate, tmp_path_factory) -> tuple[dict, list[dict]]:
  """The metrics and the lines of predictions of one evaluation."""
  output_dir = tmp_path_factory.mktemp("evaluated")
  metrics = evaluate(output_dir=output_dir)
  assert json.loads((output_dir / "metrics.json").read_text()) == metrics
  return metrics, read_lines(output_dir / "predictions.jsonl")
