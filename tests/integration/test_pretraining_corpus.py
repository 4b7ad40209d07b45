"""A reader that learns to point at words of a corpus that nobody searches."""

import json

import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def read_corpus(world, tmp_path_factory) -> Corpus:
  """The world's texts with other titles, as another corpus."""
  folder = tmp_path_factory.mktemp("read")
  rows = [{**row, "title": ""} for row in tiny_world.documents()]
  (folder / "text.jsonl").write_text("\n".join(map(json.dumps, rows)))
  build_corpus(
    [str(folder / "text.jsonl")],
    folder / "news",
    vocab=str(world.corpus_dir / "vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH,
  )
  return Corpus.open(folder / "news")


def test_reading(commands, read_corpus, tmp_path):
  settings = {
    "PRETRAINING_CORPUS_DIR": str(read_corpus.source),
    "HELD_OUT_BLOCKS": 2,
    "SAVE_EVERY_STEPS": 2,
    # One shape is compiled sooner than several.
    "PACK": False,
  }
  assert commands.train("reading", tmp_path, NUM_STEPS=2, **settings)
  metrics = read_rows(tmp_path)[-1]
  assert 0 <= metrics["masked_accuracy"] <= 1
  assert metrics["loss"] > 0
  # The order of the data depends on how many blocks there are.
  with pytest.raises(CheckpointError, match=r"held_out_blocks=2, not 0"):
    commands.train(
      "reading",
      tmp_path,
      NUM_STEPS=4,
      **settings | {"HELD_OUT_BLOCKS": 0},
    )
