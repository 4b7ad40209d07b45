"""A checkpoint of a tiny world and its generation, for all these tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_jax.evaluation.open_qa import evaluate_open_qa
from tests import tiny_world
from tests.evaluation.lines import read_lines


@pytest.fixture(scope="session")
def params(world) -> dict:
  """The parameters of the checkpoint of `model_dir`."""
  params = world.save_checkpoint(world.directory / "run", generation=0)
  world.build_generation(world.directory / "run")
  return params


@pytest.fixture(scope="session")
def model_dir(world, params) -> Path:
  """A run of open QA: checkpoint 0, with random parameters, and its index."""
  return world.directory / "run"


@pytest.fixture(scope="session")
def lengths() -> dict[str, int]:
  return {
    "query_length": tiny_world.QUERY_LENGTH,
    "block_length": tiny_world.BLOCK_LENGTH,
  }


@pytest.fixture(scope="session")
def run(world, model_dir, lengths) -> dict:
  """What the evaluations of `model_dir` have in common."""
  return {
    "model_dir": model_dir,
    "corpus_dir": world.corpus_dir,
    "retriever": tiny_world.RETRIEVER,
    **lengths,
  }


@pytest.fixture(scope="session")
def evaluate(world, run) -> Callable[..., dict]:
  """`evaluate(**arguments)` evaluates open QA on the world's questions."""
  common = {
    **run,
    "reader": tiny_world.READER,
    "question_files": {"test": world.question_file},
    "batch_size": 8,
  }
  return lambda **arguments: evaluate_open_qa(**(common | arguments))


@pytest.fixture(scope="session")
def evaluated(evaluate, tmp_path_factory) -> tuple[dict, list[dict]]:
  """The metrics and the lines of predictions of one evaluation."""
  output_dir = tmp_path_factory.mktemp("evaluated")
  metrics = evaluate(output_dir=output_dir)
  assert json.loads((output_dir / "metrics.json").read_text()) == metrics
  return metrics, read_lines(output_dir / "predictions.jsonl")
