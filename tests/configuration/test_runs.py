"""A command of a run: what it keeps, a recipe and the command line give."""

import dataclasses
import logging
import sys

import jax.numpy as jnp
import pytest

import realm_jax
from realm_jax import configuration, evaluate
from realm_jax.configuration import ConfigurationError, Kept, parsing
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation import evaluate as evaluation
from realm_jax.evaluation.run import RunConfig
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.scann import ScannConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.index_builder import IndexBuilderConfig
from realm_jax.snapshots.index_builder import build_index as build
from realm_jax.training.config import TrainConfig
from realm_jax.training.stages.pretraining import Pretraining
from tests import tiny_world

ASK = "gin/runs/ask.gin"


@pytest.fixture
def trained(keep_record, tmp_path):
  """`trained(recipe, *bindings)`: a MODEL_DIR as a run keeps it."""
  corpus_dir, model_dir = tmp_path / "corpus", tmp_path / "run"
  corpus_dir.mkdir()

  def make(recipe, *bindings, **settings):
    keep_record(recipe, model_dir, *bindings, corpus_dir=corpus_dir, **settings)
    return model_dir

  return make


def _made(
  kinds, model_dir, recipe, *bindings, function=None, files=(), **settings
):
  """Returns what a command of a run configures: an object of each class."""
  found = configuration.parsed(
    function or kinds[0],
    files,
    bindings,
    model_dir=model_dir,
    recipe=recipe,
    **settings,
  )
  return [found.build(kind) for kind in kinds]


def _refused(model_dir, recipe=ASK, *, function=RunConfig):
  with pytest.raises(ConfigurationError) as error:
    _made([function], model_dir, recipe)
  return str(error.value)


def test_a_run_is_asked_with_its_model_and_data_alone(trained, tmp_path):
  model_dir = trained("open_qa", "NUM_READ = 3", "NUM_SEARCHED = 200")
  (config,) = _made([RunConfig], model_dir, ASK)
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
    rerank_depth=0,
    num_spans=50,
    rank_answers_by="probability",
  )
  (tmp_path / "corpus").rmdir()
  with pytest.raises(CorpusError, match="pass --corpus_dir"):
    Corpus.open(config.corpus_dir)
  (config,) = _made([RunConfig], model_dir, ASK, corpus_dir="another")
  assert config.corpus_dir == "another"


def test_a_run_without_gin_files_is_configured_as_it_was(trained):
  model_dir = trained("pretrain", "NUM_STEPS = 7", "QUERY_LENGTH = 12")
  (config,) = _made([TrainConfig], model_dir, None, "NUM_STEPS = 8")
  assert (config.model_dir, config.num_steps) == (str(model_dir), 8)
  assert config.data.query_length == 12


def test_what_a_continued_run_changes_is_logged(trained, caplog):
  for steps in (7, 8):
    trained("pretrain", f"NUM_STEPS = {steps}")
  changes = [line for line in caplog.text.splitlines() if line[:1] in "-+"]
  assert [line.split() for line in changes] == [
    ["-", '"num_steps":', "7,"],
    ["+", '"num_steps":', "8,"],
  ]


def _evaluated(model_dir, *bindings, kinds=(DataConfig,), **settings):
  return _made(
    kinds,
    model_dir,
    evaluate._RECIPES,
    *bindings,
    function=evaluation.evaluate,
    **settings,
  )


def test_the_stage_chooses_the_evaluation(trained):
  model_dir = trained(
    "pretrain",
    "LOSS_FORM = 'joint'",
    "BATCH_SIZE = 64",
    "pretraining.Pretraining.num_spare = 3",
    "SEED = 7",
  )
  data, stage = _evaluated(model_dir, kinds=(DataConfig, Pretraining))
  assert (stage.loss_form, stage.num_spare) == ("joint", 3)
  # Those of gin/runs/eval_masked.gin.
  assert (data.batch_size, data.seed, data.split) == (32, 1000003, "train")


@pytest.mark.parametrize(
  ("recipe", "missing", "gin_file", "bindings"),
  [
    ("open_qa", "for QUESTIONS; pass", "eval_retrieval", ["QUESTIONS = 'q'"]),
    # Nothing evaluates this stage. A file that chooses an evaluation does.
    ("reading", r"--gin_file=gin/runs/eval\.gin", "eval_masked", []),
  ],
)
def test_an_evaluation_asks_for_what_it_needs(
  trained, recipe, missing, gin_file, bindings
):
  model_dir = trained(recipe)
  with pytest.raises(ConfigurationError, match=missing):
    _evaluated(model_dir)
  (data,) = _evaluated(model_dir, *bindings, files=[f"gin/runs/{gin_file}.gin"])
  assert data.block_length == tiny_world.BLOCK_LENGTH


@pytest.mark.parametrize(
  ("recipe", "binding", "index", "refresh_every_steps"),
  [
    ("pretrain", "REFRESH_EVERY_STEPS = 1000", ScannConfig, 1000),
    ("open_qa", "INDEX_SCORES = True", Bm25Config, None),
  ],
)
def test_an_index_is_of_the_kind_that_the_run_needs(
  trained, recipe, binding, index, refresh_every_steps
):
  config, builder = _made(
    (SnapshotConfig, IndexBuilderConfig),
    trained(recipe, binding),
    "gin/runs/build_index.gin",
    function=build,
  )
  assert isinstance(config.index, index)
  assert builder.refresh_every_steps == refresh_every_steps
  assert config.retriever == tiny_world.RETRIEVER
  assert config.query_length == tiny_world.QUERY_LENGTH


def test_other_commands_take_the_model_and_what_is_marked(trained, tmp_path):
  own = tmp_path / "own.gin"
  own.write_text(
    'include "tests/integration/tiny.gin"\n'
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import bert\n"
    "from realm_jax.models import reader\n"
    "READER = @small/reader.BertReader()\n"
    "WIDTH = 12\n"
    "small/bert.BertConfig.hidden_size = %WIDTH\n"
  )
  model_dir = trained(
    "pretrain", "pretraining.Pretraining.num_spare = 3", model=str(own)
  )
  names = configuration.parsed(None, [str(model_dir / "config.json")]).names
  assert not {"STAGE", "BATCH_SIZE", "SEED"} & names.keys()
  assert names["NUM_SPARE"] == 3
  (source,) = _made([RunConfig], model_dir, "")
  assert source.reader.bert.hidden_size == 12
  assert source.retriever == tiny_world.RETRIEVER


def test_a_directory_that_keeps_nothing_is_refused(tmp_path):
  assert "does not exist" in _refused(tmp_path / "nowhere")
  assert "no config.json" in _refused(tmp_path)
  # Whole files need none.
  files = ["gin/models/tiny.gin", ASK]
  (source,) = _made(
    [RunConfig], tmp_path, ASK, corpus_dir="corpus", files=files
  )
  assert (source.model_dir, source.corpus_dir) == (str(tmp_path), "corpus")


def test_what_starts_before_the_trainer_waits_for_it(
  trained, tmp_path, monkeypatch, caplog
):
  model_dir = tmp_path / "run"
  # A trainer that was killed may have left that much.
  (model_dir / "checkpoints").mkdir(parents=True)
  monkeypatch.setattr(parsing.time, "sleep", lambda _: trained("pretrain"))
  with caplog.at_level(logging.INFO, logger="absl"):
    _made(
      [IndexBuilderConfig],
      model_dir,
      "gin/runs/build_index.gin",
      function=build,
      waits=True,
    )
  # A typo shows in the whole path.
  assert any(str(model_dir) in text for text in caplog.messages)


_OWN_STAGE = """
import dataclasses
from typing import Annotated

from realm_jax.settings import OfRun
from realm_jax.training.stages.open_qa import OpenQa


@dataclasses.dataclass(frozen=True)
class OwnQa(OpenQa):
  own_setting: Annotated[int, OfRun()] = 3
"""
_OWN_GIN = """
from __gin__ import dynamic_registration
import own_stages
include "tests/integration/tiny.gin"
STAGE = @own_stages.OwnQa()
"""


def test_a_stage_of_ones_own_is_asked_and_evaluated_as_what_it_extends(
  recorded_run, keep_record, tmp_path, monkeypatch, one_device
):
  (tmp_path / "own_stages.py").write_text(_OWN_STAGE)
  (tmp_path / "own.gin").write_text(_OWN_GIN)
  monkeypatch.syspath_prepend(tmp_path)
  model_dir = recorded_run("pretrain")
  own = str(tmp_path / "own.gin")
  keep_record("open_qa", model_dir, model=own)
  # As another process begins.
  sys.modules.pop("own_stages")
  assert realm_jax.load(model_dir).ask("who built the bridge?").answers
  with pytest.raises(ConfigurationError, match="--modules=own_stages"):
    _made([TrainConfig], model_dir, None)
  assert "own_stages" not in sys.modules

  modules = ["own_stages"]
  run = realm_jax.load(model_dir, modules=modules)
  assert run.ask("who built the bridge?").answers
  assert run.kinds == {"question"}
  (config,) = _made([TrainConfig], model_dir, None, modules=modules)
  assert type(config.stage).__name__ == "OwnQa"
  (data,) = _evaluated(model_dir, "QUESTIONS = 'q'", modules=modules)
  assert (data.task, data.split) == ("open_qa", "test")


_OWN_VALUES = """
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Values:
  components: Any
  sizes: Any = ()
  dtype: Any = None
  path: Any = None
  nothing: Any = 3
"""


def test_values_of_all_types_come_back(tmp_path, monkeypatch):
  (tmp_path / "own_values.py").write_text(_OWN_VALUES)
  monkeypatch.syspath_prepend(tmp_path)
  import own_values

  own = own_values.Values
  given = own(
    components={"retriever": tiny_world.RETRIEVER, "more": own(2)},
    sizes=[(1, 0.5), True],
    dtype=jnp.bfloat16,
    path=tmp_path,
    nothing=None,
  )
  Kept.of(given).write(tmp_path)
  found = configuration.Bindings(["own_values"])
  Kept.find(tmp_path).bind(found, is_whole=True)
  assert found.build(own) == dataclasses.replace(
    given, sizes=((1, 0.5), True), dtype="bfloat16", path=str(tmp_path)
  )
  local = dataclasses.make_dataclass("Local", [])
  with pytest.raises(ConfigurationError, match="at the top of its module"):
    Kept.of(local())
