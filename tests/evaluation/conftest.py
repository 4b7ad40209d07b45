"""A checkpoint of a tiny world and its generation, for all these tests."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_jax import configuration
from realm_jax.evaluation.answering import (
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.open_qa import evaluate_open_qa
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.files.kept_configuration import keep_configuration
from realm_jax.inputs.config import DataConfig
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


@pytest.fixture
def keep_record(world) -> Callable[..., None]:
  """`keep_record(recipe, model_dir)` keeps what `realm_jax.train` would."""

  def keep(recipe: str, model_dir: Path) -> None:
    given = {"MODEL_DIR": "elsewhere", "CORPUS_DIR": str(world.corpus_dir)}
    if recipe == "open_qa":
      given["TRAIN_QUESTIONS"] = "train.jsonl"
    with configuration.parsed(
      [f"gin/runs/{recipe}.gin", "tests/integration/tiny.gin"],
      [f"{name} = {value!r}" for name, value in given.items()],
    ):
      keep_configuration(model_dir, configuration.text())

  return keep


@pytest.fixture
def recorded_run(model_dir, keep_record, tmp_path) -> Callable[[str], Path]:
  """`recorded_run(recipe)` is the same run, with a record of its stage."""

  def make(recipe: str) -> Path:
    run = tmp_path / "runs" / recipe
    run.mkdir(parents=True)
    for name in ("checkpoints", "generations"):
      (run / name).symlink_to(model_dir / name)
    keep_record(recipe, run)
    return run

  return make


@pytest.fixture(scope="session")
def source(world, model_dir) -> ModelSource:
  """The retriever and the reader of `model_dir`."""
  return ModelSource(
    model_dir=model_dir,
    corpus_dir=world.corpus_dir,
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )


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
