"""Real paragraphs and questions through the recipes for one's own text."""

import json

import pytest

from benchmarks.data import real_texts
from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation import run as evaluation_run
from realm_jax.generations.building import run as building
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig
from tests.evaluation.lines import read_lines
from tests.integration.commands import call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_RECIPES = "gin/experiments/small_text"
# The recipes' model in small.
_SMALL = {
  "bert.BertConfig.hidden_size": 32,
  "bert.BertConfig.num_layers": 1,
  "bert.BertConfig.num_heads": 2,
  "bert.BertConfig.intermediate_size": 64,
}
_STEPS = 3
_NUM_TEXTS = 300


def _write_lines(path, records):
  lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
  path.write_text("".join(lines), encoding="utf-8")
  return str(path)


@pytest.fixture(scope="module")
def text(shared_data, tmp_path_factory):
  """A folder with Wikipedia's paragraphs and the questions about them."""
  folder = tmp_path_factory.mktemp("text")
  texts = real_texts.titled_paragraphs(shared_data)[:_NUM_TEXTS]
  documents = [{"title": title, "text": text} for title, text in texts]
  questions = real_texts.training_questions(shared_data)[:_NUM_TEXTS]
  _write_lines(folder / "text.jsonl", documents)
  _write_lines(folder / "train.jsonl", questions[:-32])
  _write_lines(folder / "test.jsonl", questions[-32:])
  summary = build_corpus(
    [str(folder / "text.jsonl")],
    folder / "corpus",
    vocab="train:1500",
    block_length=128,
  )
  assert summary.documents + summary.skipped.total() == len(documents)
  return folder


def _run(function, recipe, text, **bindings):
  return call(
    function,
    [f"{_RECIPES}/{recipe}.gin"],
    **_SMALL,
    CORPUS_DIR=text / "corpus",
    **bindings,
  )


def test_every_stage_and_an_evaluation(text, tmp_path):
  stages = ("inverse_cloze", "reading", "pretrain", "open_qa")
  folders = {stage: tmp_path / stage for stage in stages}

  def train(stage, **bindings):
    config = _run(
      TrainConfig,
      stage,
      text,
      MODEL_DIR=folders[stage],
      BATCH_SIZE=8,
      # Each bucket is compiled.
      MAX_SHAPE_BUCKETS=1,
      **bindings,
    )
    return loop.train(config)

  for stage in ("inverse_cloze", "reading"):
    assert train(stage, NUM_STEPS=_STEPS).step == _STEPS
  more = {
    "pretrain": {
      "INITIAL_CHECKPOINT": folders["inverse_cloze"],
      "INITIAL_READER": folders["reading"],
    },
    "open_qa": {
      "INITIAL_CHECKPOINT": folders["pretrain"],
      "TRAIN_QUESTIONS": text / "train.jsonl",
      "NUM_SEARCHED": 50,
    },
  }
  for stage, bindings in more.items():
    # Checkpoint 0, of which the first generation is made.
    train(stage, NUM_STEPS=0, **bindings)
    published = _run(
      building.build_index,
      "build_index",
      text,
      MODEL_DIR=folders[stage],
      **{
        "sidecar.SidecarConfig.once": True,
        "artifacts.EmbeddingConfig.num_lengths": 2,
      },
    )
    assert published == [0]
    done = train(stage, NUM_STEPS=_STEPS, **bindings)
    assert done.step == _STEPS
    # Open QA has no loss on questions whose answer is not found.
    assert 0 <= done.metrics["loss"] < 100

  figures = _run(
    evaluation_run.evaluate,
    "eval",
    text,
    MODEL_DIR=folders["open_qa"],
    QUESTIONS=text / "test.jsonl",
    OUTPUT_DIR=tmp_path / "figures",
  )
  assert figures["num_questions"] == 32
  predictions = read_lines(tmp_path / "figures" / "predictions.jsonl")
  texts = Corpus.open(text / "corpus")
  bodies = " ".join(texts.body(row) for row in range(texts.num_blocks))
  # Answers are shown as they were written.
  assert all(p["prediction"] in bodies for p in predictions)
