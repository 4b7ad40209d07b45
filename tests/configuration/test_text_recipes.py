"""The recipes of readers that write are what they say, over any model."""

import pytest

from realm_jax import configuration
from realm_jax.configuration.bindings import Reference
from realm_jax.models.bert import BertConfig
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.lora import LoraConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.models.t5 import T5Config
from realm_jax.training.config import TrainConfig

_DATA = [
  *('MODEL_DIR = "run"', 'CORPUS_DIR = "corpus"'),
  *('INITIAL_CHECKPOINT = "a"', 'INITIAL_READER = "b"'),
]
_QUESTIONS = 'TRAIN_QUESTIONS = "train"'
# Recipes that need none: their sentences are the corpus's.
_MASKED = ("experiments/emdr2/masked_spans", "experiments/atlas/pretrain")


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> str:
  """The config.json of an import with other values than the recipes have."""
  folder = tmp_path_factory.mktemp("import")
  models = {
    "retriever": BertRetriever(
      BertConfig(vocab_size=99, separator_id=3),
      projection_size=8,
      shared_towers=False,
    ),
    "reader": GenerativeReader(T5Config(vocab_size=99)),
  }
  kept = configuration.Kept.of(Reference(TrainConfig, kept=models))
  kept.write(folder)
  return str(folder / "config.json")


@pytest.mark.parametrize(
  ("recipe", "read", "lengths", "prompt", "view", "rate", "objective"),
  [
    (
      *("experiments/fid/base", 100, (200, 16), "question: {query}", "t5"),
      *(1e-4, "emdr2"),
    ),
    (
      *("experiments/fid/large", 100, (250, 16), "question: {query}", "t5"),
      *(5e-5, "emdr2"),
    ),
    (
      *("experiments/emdr2/trivia_qa", 50, (512, 32), "question: {query}"),
      *(None, 2e-5, "emdr2"),
    ),
    (
      *("experiments/emdr2/masked_spans", 50, (512, 32), "{query}", None),
      *(2e-5, "emdr2"),
    ),
    (
      *("experiments/atlas/pretrain", 20, (384, 64), "{query}", "t5"),
      *(1e-4, "perplexity"),
    ),
    (
      *("experiments/atlas/few_shot", 40, (512, 16)),
      *("question: {query} answer: <extra_id_0>", "t5", 4e-5, "perplexity"),
    ),
    ("baselines/t5_closed_book", 1, (64, 32), "{query}", "t5", 1e-3, "emdr2"),
  ],
)
def test_a_recipe_has_its_settings(
  imported, recipe, read, lengths, prompt, view, rate, objective
):
  files = ["gin/models/bert_base.gin", "gin/models/t5_base.gin"]
  given = _DATA if recipe in _MASKED else [*_DATA, _QUESTIONS]
  for models in (files, [imported]):
    found = configuration.parsed(
      TrainConfig, [*models, f"gin/{recipe}.gin"], given
    ).build(TrainConfig)
    reader = found.reader
    assert (reader.input_length, reader.target_length) == lengths
    assert (reader.prompt, reader.view) == (prompt, view)
    assert found.optimizer.learning_rate == rate
    stage = found.stage
    assert (stage.num_read, stage.objective) == (read, objective)
    reranked = 100 if recipe.endswith("atlas/pretrain") else None
    assert stage.num_reranked == reranked
    if "emdr2" in recipe:
      assert found.retriever.projection_size is None
    if "atlas" in recipe:
      assert found.retriever.score_scale == 100.0


@pytest.mark.parametrize("size", ["small", "base", "large", "xl", "11b"])
def test_a_size_is_that_of_its_name(size):
  files = ["gin/models/bert_base.gin", f"gin/models/t5_{size}.gin"]
  found = configuration.parsed(
    TrainConfig, [*files, "gin/runs/text_to_text.gin"], [*_DATA, _QUESTIONS]
  ).build(TrainConfig)
  t5, millions = found.reader.t5, {"small": 60, "base": 220, "large": 770}
  inner = t5.num_heads * t5.head_size
  layer = t5.hidden_size * (4 * inner + 2 * t5.intermediate_size)
  cross = 4 * t5.hidden_size * inner
  number = t5.vocab_size * t5.hidden_size
  number += t5.num_layers * (2 * layer + cross)
  wanted = {**millions, "xl": 2800, "11b": 11000}[size]
  assert number / 1e6 == pytest.approx(wanted, rel=0.06)


def test_a_run_over_an_import_keeps_lora(imported, tmp_path):
  files = [imported, "gin/models/lora.gin", "gin/runs/text_to_text.gin"]
  given = [*_DATA, _QUESTIONS, "LORA_RANK = 4"]
  found = configuration.parsed(TrainConfig, files, given).build(TrainConfig)
  assert found.retriever.bert.lora == found.reader.t5.lora == LoraConfig(4)
  configuration.Kept.of(found).write(tmp_path)
  # What other commands take of it.
  kept = configuration.parsed(None, [str(tmp_path / "config.json")])
  assert kept.configured(kept.names["READER"])() == found.reader
