"""The demo's recipes with a budget of steps that the tests set by hand."""

import pytest

from realm_jax.ablation.config import READING_RETRIEVED, RECIPES, AblationConfig
from realm_jax.ablation.data import GivenData
from realm_jax.ablation.recipes import Recipes

_FOLDER = "gin/experiments/demo"


@pytest.fixture(scope="session")
def recipes():
  return Recipes()


@pytest.fixture(scope="session")
def make_config():
  """`make_config(**budget)` is an ablation of the demo on some corpus."""

  def make(**budget):
    names = (*RECIPES, READING_RETRIEVED)
    files = {name: [f"{_FOLDER}/{name}.gin"] for name in names}
    files["pretraining"] = [f"{_FOLDER}/pretrain.gin"]
    return AblationConfig(
      files,
      GivenData("corpus", "train.jsonl", "test.jsonl", "sentences.jsonl"),
      num_steps=budget,
    )

  return make
