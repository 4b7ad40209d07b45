"""A run in a bucket: corpus, checkpoints, metrics, questions, predictions."""

import contextlib
import json
import os

import pytest

from benchmarks.runs.jobs import Job, gin_command, wait_until
from benchmarks.runs.object_store import StoreFault
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation import evaluate as evaluation_run
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import MODEL_FILE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_STEPS, _SAVE_EVERY = 6, 2
_TRAINING = {
  "NUM_STEPS": _STEPS,
  "SAVE_EVERY_STEPS": _SAVE_EVERY,
  "BATCH_SIZE": 8,
  "LEARNING_RATE": 1e-3,
  "WARMUP_STEPS": 2,
}


@pytest.fixture
def corpus_dir(object_store, world) -> str:
  """The world's corpus, built from the store into the store."""
  for name in ("text.jsonl", "vocab.txt", "questions.jsonl"):
    object_store.write(f"world/{name}", (world.directory / name).read_bytes())
  build_corpus(
    [object_store.path("world/t*.jsonl")],
    object_store.path("world/corpus"),
    vocab=object_store.path("world/vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH,
    tagger=tiny_world.tag,
  )
  return object_store.path("world/corpus")


def test_a_run_in_a_bucket_is_killed_goes_on_and_is_evaluated(
  object_store,
  corpus_dir,
  commands,
  command_environment,
  quick_jobs,
  tmp_path,
  monkeypatch,
):
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(tmp_path / "cache"))
  model_dir = object_store.path("runs/ict")
  trainer = Job(
    "trainer",
    gin_command(
      "train",
      ["gin/runs/inverse_cloze.gin", MODEL_FILE],
      MODEL_DIR=model_dir,
      CORPUS_DIR=corpus_dir,
      **_TRAINING,
    ),
    log=tmp_path / "trainer.log",
    environment={
      **command_environment,
      **os.environ,
      "XLA_FLAGS": command_environment["XLA_FLAGS"],
      "REALM_JAX_REQUEST_TIMEOUT_SECONDS": "600",
    },
  )
  # The checkpoint after the second is never finished.
  object_store.inject(StoreFault("hang", "^POST .*checkpoints/4", times=1000))
  trainer.start()
  try:
    wait_until(
      lambda: sum(object_store.happened()) > 0, what="fault", jobs=(trainer,)
    )
    trainer.kill()
    object_store.inject()
    with contextlib.closing(CheckpointStore(model_dir)) as store:
      assert store.latest() == 2
    trainer.start()
    wait_until(trainer.ended, what="end of the trainer", jobs=())
  finally:
    trainer.kill()
  assert "continuing from checkpoint 2" in trainer.last_output()
  local = tmp_path / "local"
  commands.train("inverse_cloze", local, **_TRAINING)
  losses, expected = (
    [row["loss"] for row in read_rows(folder)] for folder in (model_dir, local)
  )
  assert losses == expected
  # What the local run has trained is what the other has.
  assert commands.world.build_generation(local) == [_STEPS]
  figures = commands.call(
    evaluation_run.evaluate,
    "eval_retrieval",
    MODEL_DIR=model_dir,
    CORPUS_DIR=corpus_dir,
    QUESTIONS=object_store.path("world/questions.jsonl"),
    OUTPUT_DIR=object_store.path("runs/ict/eval"),
    NUM_SEARCHED=20,
    GENERATION=local / "generations",
  )
  assert figures["checkpoint"] == figures["generation"] == _STEPS
  names = object_store.names("runs/ict/eval")
  assert [name.rpartition("/")[2] for name in names] == [
    "metrics.json",
    "retrieved.jsonl",
  ]
  written = json.loads(object_store.read("runs/ict/eval/metrics.json"))
  assert written["recall_at_5"] == figures["recall_at_5"]
