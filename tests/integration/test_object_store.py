"""Runs in a bucket: training, and the other commands over what it leaves."""

import json
import os

import pytest
import safetensors.numpy

from harness.jobs import Job, gin_command, running, wait_until
from harness.object_store import StoreFault
from realm_jax.answers.run_answers import RunAnswers
from realm_jax.checkpoints.store import BestCheckpoint, read_best
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation import parts
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.compare import compare
from realm_jax.evaluation.evaluate import evaluate, follow
from realm_jax.evaluation.run import RunConfig, TrainedRun
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.agreement import Agreement
from realm_jax.storage.paths import upload_directory
from realm_jax.weights.exporting import export_weights
from tests import tiny_world
from tests.counted_searches import counted_searches
from tests.integration.commands import MODEL_FILE, checkpoint_steps, losses
from tests.weights import models

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
    fields=["year"],
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
  with running(trainer):
    wait_until(
      lambda: sum(object_store.happened()) > 0, what="fault", jobs=(trainer,)
    )
    trainer.kill()
    object_store.inject()
    assert checkpoint_steps(model_dir)[-1] == 2
    trainer.start()
    wait_until(trainer.ended, what="end of the trainer")
  assert "continuing from checkpoint 2" in trainer.last_output()
  local = tmp_path / "local"
  commands.train("inverse_cloze", local, **_TRAINING)
  assert losses(model_dir) == losses(local)
  # What the local run has trained is what the other has.
  assert commands.world.build_snapshot(local) == [_STEPS]
  metrics = commands.call(
    evaluate,
    "eval_retrieval",
    MODEL_DIR=model_dir,
    CORPUS_DIR=corpus_dir,
    QUESTIONS=object_store.path("world/questions.jsonl"),
    OUTPUT_DIR=object_store.path("runs/ict/eval"),
    NUM_SEARCHED=20,
    SNAPSHOT=local / "snapshots",
  )
  assert metrics["checkpoint"] == metrics["snapshot"] == _STEPS
  names = object_store.names("runs/ict/eval")
  assert [name.rpartition("/")[2] for name in names] == [
    "metrics.json",
    "retrieved.jsonl",
  ]
  written = json.loads(object_store.read("runs/ict/eval/metrics.json"))
  assert written["recall_at_5"] == metrics["recall_at_5"]


@pytest.fixture
def bucket(object_store, world) -> str:
  """A folder with the world's files, and a run with a snapshot."""
  folder = object_store.path("commands")
  upload_directory(world.directory, f"{folder}/world")
  world.save_checkpoint(f"{folder}/run", snapshot=0)
  world.build_snapshot(f"{folder}/run", corpus_dir=f"{folder}/world/corpus")
  return folder


def test_a_run_answers_and_is_followed_and_compared(
  commands, bucket, object_store, monkeypatch
):
  run = {
    "MODEL_DIR": f"{bucket}/run",
    "CORPUS_DIR": f"{bucket}/world/corpus",
  }
  questions = f"{bucket}/world/questions.jsonl"
  loaded = TrainedRun.load(commands.call(RunConfig, "ask", **run, NUM_SPANS=20))
  (result,) = ask(loaded, ["where was Ada born?"])
  assert result.answer in result.answers[0].block.text

  def followed():
    return commands.call(
      follow,
      "eval",
      **run,
      QUESTIONS=questions,
      OUTPUT_DIR=f"{bucket}/eval",
      FOLLOW_UNTIL_STEP=0,
      BATCH_SIZE=1,
    )

  monkeypatch.setattr(parts, "_MAX_LINES", 2)
  with counted_searches(1):
    followed()
  with counted_searches() as counts:
    metrics = followed()
  # Of two batches, one was done.
  assert len(counts) == 1
  names = object_store.names("commands/eval/0")
  assert [name.rpartition("/")[2] for name in names] == [
    "metrics.json",
    "predictions.jsonl",
  ]
  best = BestCheckpoint("exact_match", 0, metrics["exact_match"])
  assert read_best(run["MODEL_DIR"]) == best
  predictions = f"{bucket}/eval/0/predictions.jsonl"
  found = compare(predictions, predictions)
  assert found["figures"][0]["num_questions"] == len(tiny_world.questions())

  data = DataConfig(
    task="open_qa",
    corpus_dir=run["CORPUS_DIR"],
    question_files={"train": questions},
    batch_size=1,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )

  def find_answers():
    agreement = Agreement("answers")
    RunAnswers(run["MODEL_DIR"], data, agreement=agreement).of(data.corpus)

  find_answers()
  made = object_store.names("commands/run/answers/")
  with object_store.counted() as requests:
    find_answers()
  assert not [line for line in requests if line.startswith("POST")]
  assert object_store.names("commands/run/answers/") == made


def test_weights_go_in_and_out(object_store, tmp_path):
  home = models.GOLDEN / "hf_bert" / "masked_lm"
  model_dir = object_store.path("commands/imported")
  models.import_weights("hf_bert", home, model_dir, parts=["reader"])
  run = tmp_path / "run"
  models.import_weights("hf_bert", home, run, parts=["reader"])
  exported = object_store.path("commands/exported")
  retriever, reader, *_ = models.load(run)
  export_weights(model_dir, retriever, reader, exported, to="hf_bert")
  vocabulary = object_store.read("commands/exported/vocab.txt")
  assert vocabulary == (home / "vocab.txt").read_bytes()
  written = safetensors.numpy.load(
    object_store.read("commands/exported/model.safetensors")
  )
  models.assert_same_bits(written, models.tensors(home))
