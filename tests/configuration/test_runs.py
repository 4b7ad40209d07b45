"""A command of a run: what it keeps, a recipe and the command line give."""

import logging

import pytest

import gin
from realm_jax import configuration, evaluate
from realm_jax.configuration import ConfigurationError, KeptModel, runs
from realm_jax.evaluation import evaluate as evaluation
from realm_jax.evaluation import open_qa
from realm_jax.evaluation.run import RunConfig
from realm_jax.generations.build import GenerationConfig
from realm_jax.generations.sidecar import SidecarConfig
from realm_jax.generations.sidecar import build_index as build
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.retriever import Retriever
from realm_jax.training.config import TrainConfig
from realm_jax.training.kept_configuration import keep_configuration
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.weights import exporting
from realm_jax.weights.model import gin_model
from tests import tiny_world


@pytest.fixture
def trained(tmp_path):
  """`trained(recipe, *bindings)`: a MODEL_DIR as a run keeps it."""
  (tmp_path / "corpus").mkdir()

  def keep(recipe, *bindings, given="tests/integration/tiny.gin"):
    model_dir = tmp_path / "run"
    values = {"MODEL_DIR": "elsewhere", "CORPUS_DIR": tmp_path / "corpus"}
    if recipe == "open_qa":
      values["TRAIN_QUESTIONS"] = "train.jsonl"
    with configuration.parsed(
      TrainConfig,
      [f"gin/runs/{recipe}.gin", given],
      [*(f"{name} = {str(v)!r}" for name, v in values.items()), *bindings],
    ):
      config = configuration.configured(TrainConfig)()
      keep_configuration(model_dir, configuration.kept_files(config.stage))
    return model_dir

  return keep


def _is_configured(function):
  return f"{function.__name__}." in gin.config_str()


def _parsed(function, model_dir, recipe, *bindings, **settings):
  return configuration.parsed_for_run(
    function, model_dir, recipe=recipe, bindings=bindings, **settings
  )


def test_a_run_is_asked_with_its_model_and_data_alone(trained, tmp_path):
  model_dir = trained("open_qa", "NUM_READ = 3", "NUM_SEARCHED = 200")
  with _parsed(RunConfig, model_dir, "gin/runs/ask.gin"):
    config = configuration.configured(RunConfig)()
  # How many blocks training searched is no matter of the model.
  assert config == RunConfig(
    # Where the run is now.
    model_dir=str(model_dir),
    corpus_dir=str(tmp_path / "corpus"),
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
    num_read=3,
    num_searched=20,
    num_spans=50,
    rank_answers_by="probability",
  )


def test_the_stage_chooses_the_evaluation(trained):
  given = "HELD_OUT_BLOCKS = 4", "SEED = 7", "NUM_CANDIDATES = 5"
  model_dir = trained(
    "pretrain",
    "LOSS_FORM = 'joint'",
    "BATCH_SIZE = 64",
    "UNMASKED_SPAN_KINDS = []",
    "pretraining.Pretraining.num_spare = 3",
    "DROP_SOURCE = False",
    *given,
  )
  with _parsed(evaluation.evaluate, model_dir, evaluate._RECIPES):
    data = configuration.configured(DataConfig)()
    stage = configuration.configured(Pretraining)()
  assert stage == Pretraining(
    num_candidates=5, loss_form="joint", num_spare=3, drop_source=False
  )
  assert (data.held_out_blocks, data.unmasked_span_kinds) == (4, [])
  # Those of gin/runs/eval_masked.gin.
  assert (data.batch_size, data.seed, data.split) == (32, 1000003, "train")


def test_an_evaluation_asks_for_its_questions(trained):
  model_dir = trained("open_qa", "TASK = 'open_qa_regex'")
  with (
    pytest.raises(ConfigurationError) as error,
    _parsed(evaluation.evaluate, model_dir, evaluate._RECIPES),
  ):
    pass
  assert "no value for QUESTIONS; pass --gin.QUESTIONS=VALUE" in str(
    error.value
  )
  assert "gin/runs/eval.gin" in str(error.value)
  # Evaluated by the recipe of another stage, which is named.
  with _parsed(
    evaluation.evaluate,
    model_dir,
    evaluate._RECIPES,
    "QUESTIONS = 'q'",
    gin_files=["gin/runs/eval_retrieval.gin"],
  ):
    data = configuration.configured(DataConfig)()
    evaluates_answers = _is_configured(open_qa.evaluate_open_qa)
  assert (data.task, data.split) == ("open_qa", "test")
  assert data.block_length == tiny_world.BLOCK_LENGTH
  assert not evaluates_answers


def test_a_stage_that_nothing_evaluates_is_told(trained):
  model_dir = trained("reading")
  with (
    pytest.raises(ConfigurationError, match=r"--gin_file=gin/runs/eval\.gin"),
    _parsed(evaluation.evaluate, model_dir, evaluate._RECIPES),
  ):
    pass
  # A file that chooses an evaluation needs no recipe of the stage.
  with _parsed(
    evaluation.follow,
    model_dir,
    evaluate._RECIPES,
    gin_files=["gin/runs/eval_masked.gin"],
  ):
    assert configuration.configured(DataConfig)().seed == 1000003


@pytest.mark.parametrize(
  ("recipe", "bindings", "index"),
  [
    ("pretrain", ("REFRESH_EVERY_STEPS = 1000",), ScannConfig),
    ("open_qa", ("INDEX_SCORES = True",), Bm25Config),
  ],
)
def test_an_index_is_of_the_kind_that_the_run_needs(
  trained, recipe, bindings, index
):
  model_dir = trained(recipe, *bindings)
  with _parsed(build, model_dir, "gin/runs/build_index.gin"):
    config = configuration.configured(GenerationConfig)()
    sidecar = configuration.configured(SidecarConfig)()
  assert isinstance(config.index, index)
  assert sidecar.refresh_every_steps == (1000 if recipe == "pretrain" else None)
  assert config.retriever == tiny_world.RETRIEVER
  assert config.query_length == tiny_world.QUERY_LENGTH


def test_an_import_is_known_by_the_model_file_that_it_writes(tmp_path):
  text = gin_model(tiny_world.RETRIEVER, tiny_world.READER, source="a")
  (tmp_path / "model.gin").write_text(text)
  with _parsed(
    exporting.export_weights, tmp_path, "", given=("output_dir", "to")
  ) as kept:
    retriever = configuration.configured(Retriever)()
  assert kept.stage is None
  # An import has one dropout rate, that of BERT.
  assert retriever == tiny_world.RETRIEVER.clone(projection_dropout_rate=0.0)
  # So is a checkpoint of it.
  assert KeptModel.find(tmp_path / "checkpoints" / "0") == kept


def test_a_run_keeps_what_others_take_and_nothing_else(trained, tmp_path):
  own = tmp_path / "own.gin"
  own.write_text(
    'include "tests/integration/tiny.gin"\n'
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import bert\n"
    "from realm_jax.models import reader\n"
    "READER = @small/reader.Reader()\n"
    "WIDTH = 12\n"
    "small/bert.BertConfig.hidden_size = %WIDTH\n"
  )
  model_dir = trained(
    "pretrain", "pretraining.Pretraining.num_spare = 3", given=str(own)
  )
  kept = KeptModel.find(model_dir)
  for name in ("TrainConfig", "BATCH_SIZE", "SEED", "realm_jax.training"):
    assert name not in kept.text
  assert "NUM_SPARE = 3" in kept.text
  with _parsed(RunConfig, model_dir, ""):
    source = configuration.configured(RunConfig)()
  assert source.reader.bert.hidden_size == 12
  assert source.retriever == tiny_world.RETRIEVER


def test_a_run_of_an_older_version_is_told(tmp_path):
  (tmp_path / "config.gin").write_text("NUM_STEPS = 3\n")
  assert "older version" in _refused(tmp_path)
  assert "INITIAL_CHECKPOINT" in _refused(tmp_path)


def test_a_corpus_that_is_not_there_any_more_is_told(trained, tmp_path):
  model_dir = trained("open_qa")
  (tmp_path / "corpus").rmdir()
  assert "pass --corpus_dir" in _refused(model_dir)
  with _parsed(RunConfig, model_dir, "gin/runs/ask.gin", corpus_dir="another"):
    pass


def _refused(model_dir, recipe="gin/runs/ask.gin", **settings):
  with (
    pytest.raises(ConfigurationError) as error,
    _parsed(RunConfig, model_dir, recipe, **settings),
  ):
    pass
  return str(error.value)


def test_a_directory_that_keeps_nothing_is_refused(tmp_path):
  assert "does not exist" in _refused(tmp_path / "nowhere")
  assert "no model.gin" in _refused(tmp_path)
  # Whole files need none.
  with _parsed(
    RunConfig,
    tmp_path,
    "gin/runs/ask.gin",
    corpus_dir="corpus",
    gin_files=["gin/models/tiny.gin", "gin/runs/ask.gin"],
  ) as kept:
    source = configuration.configured(RunConfig)()
  assert kept is None
  assert (source.model_dir, source.corpus_dir) == (str(tmp_path), "corpus")


def test_what_starts_before_the_trainer_waits_for_it(
  trained, tmp_path, monkeypatch, caplog
):
  model_dir = tmp_path / "run"
  clock = [0.0]

  def sleep(seconds):
    clock[0] += 20.0
    if clock[0] == 40.0:
      # A trainer that was killed may have left that much.
      (model_dir / "checkpoints").mkdir(parents=True)
    if clock[0] == 100.0:
      trained("pretrain")

  monkeypatch.setattr(runs.time, "sleep", sleep)
  monkeypatch.setattr(runs.time, "monotonic", lambda: clock[0])
  with (
    caplog.at_level(logging.INFO, logger="absl"),
    _parsed(build, model_dir, "gin/runs/build_index.gin", waits=True) as kept,
  ):
    pass
  assert kept.stage == "Pretraining"
  # It says so every 30 seconds; a typo shows in the whole path.
  said = [text for text in caplog.messages if str(model_dir) in text]
  assert len(said) == 3


def test_a_bucket_keeps_the_configuration_too(object_store):
  model_dir = object_store.path("kept/run")
  for value in (1, 2):
    keep_configuration(model_dir, {"model.gin": f"A = {value}\n"})
  assert KeptModel.find(model_dir).text == "A = 2\n"
