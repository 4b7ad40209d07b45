"""The gin file of an imported model."""

import pytest

from realm_jax import configuration
from realm_jax.conversion.gin_model import gin_model
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.training.stages.open_qa import OpenQa
from tests.integration.commands import FUNCTIONS

_BERT = BertConfig(
  hidden_size=6,
  num_layers=1,
  num_heads=3,
  intermediate_size=5,
  max_positions=40,
  layer_norm_eps=1e-5,
  dropout_rate=0.25,
  activation="gelu",
  attention_mask_value=-3.4028234663852886e38,
  init_stddev=0.5,
)
_RETRIEVER = Retriever(
  bert=_BERT,
  shared_towers=False,
  pooling="cls",
  projection_size=4,
  projection_norm_eps=1e-3,
  projection_dropout_rate=0.25,
  normalize=True,
  score_scale=12.5,
)
_READER = Reader(
  bert=_BERT,
  joint_length=40,
  span_size=7,
  span_norm_eps=1e-2,
  max_answer_width=4,
)


@pytest.fixture
def model_file(tmp_path):
  text = gin_model(_RETRIEVER, _READER, source="somewhere")
  (tmp_path / "model.gin").write_text(text)
  return str(tmp_path / "model.gin")


def test_it_binds_the_very_same_modules(model_file):
  with configuration.parsed(OpenQa, [model_file]):
    assert configuration.configured(Retriever)() == _RETRIEVER
    assert configuration.configured(Reader)() == _READER


@pytest.mark.parametrize(
  "recipe",
  [
    *("inverse_cloze", "reading", "pretrain", "open_qa"),
    *("build_index", "eval", "eval_retrieval", "eval_masked"),
    *("ask", "explain"),
  ],
)
def test_it_goes_with_every_recipe_and_its_macros_may_change(
  model_file, recipe
):
  required = ["MODEL_DIR = ''", "CORPUS_DIR = ''"]
  if recipe == "open_qa":
    required.append("TRAIN_QUESTIONS = ''")
  if recipe.startswith("eval"):
    required.append("OUTPUT_DIR = ''")
  if recipe in ("eval", "eval_retrieval"):
    required.append("QUESTIONS = ''")
  changed = ["DROPOUT_RATE = 0.0", "SCORE_SCALE = 3.0", "JOINT_LENGTH = 33"]
  with configuration.parsed(
    FUNCTIONS[recipe],
    [model_file, f"gin/runs/{recipe}.gin"],
    required + changed,
  ):
    retriever = configuration.configured(Retriever)()
    assert retriever.score_scale == 3.0
    assert retriever.bert.dropout_rate == 0.0
    assert configuration.configured(Reader)().joint_length == 33
