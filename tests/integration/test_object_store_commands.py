"""The other commands over a run in a bucket, as their gin files bind them."""

import contextlib

import numpy as np
import pytest
import safetensors.numpy

from realm_jax.answers.run_answers import RunAnswers
from realm_jax.checkpoints.best import BestCheckpoint, read_best
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.evaluation.answers import ask
from realm_jax.evaluation.compare import compare
from realm_jax.evaluation.evaluate import follow
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.generations.inspection import inspect, open_run
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.agreement import Agreement
from realm_jax.storage.paths import upload_directory
from tests import tiny_world
from tests.generations.conftest import publish_one
from tests.weights import models

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def bucket(_object_store, world, tmp_path_factory) -> str:
  """A folder with the world's files, and a run with a generation."""
  with pytest.MonkeyPatch.context() as patch:
    cache = tmp_path_factory.mktemp("cache")
    patch.setenv("REALM_JAX_CACHE_DIR", str(cache))
    folder = _object_store.path("commands")
    upload_directory(world.directory, f"{folder}/world")
    world.save_checkpoint(f"{folder}/run", generation=0)
    world.build_generation(f"{folder}/run", corpus_dir=f"{folder}/world/corpus")
    yield folder


@pytest.fixture
def run(bucket, object_store) -> dict[str, str]:
  """The values that gin files want of the run."""
  del object_store
  return {
    "MODEL_DIR": f"{bucket}/run",
    "CORPUS_DIR": f"{bucket}/world/corpus",
  }


@pytest.fixture
def questions(bucket, run) -> DataConfig:
  return DataConfig(
    task="open_qa",
    corpus_dir=run["CORPUS_DIR"],
    question_files={"train": f"{bucket}/world/questions.jsonl"},
    batch_size=1,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )


def test_a_question_is_answered(commands, run):
  loaded = Run.load(commands.call(RunConfig, "ask", **run, NUM_SPANS=20))
  (answered,) = ask(loaded, ["where was Ada born?"])
  assert answered.text in answered.answers[0].block.text


def test_a_followed_run_names_its_best_and_its_evaluations_are_compared(
  commands, run, bucket
):
  figures = commands.call(
    follow,
    "eval",
    **run,
    QUESTIONS=f"{bucket}/world/questions.jsonl",
    OUTPUT_DIR=f"{bucket}/eval",
    FOLLOW_UNTIL_STEP=0,
    BATCH_SIZE=1,
  )
  best = BestCheckpoint("exact_match", 0, figures["exact_match"])
  assert read_best(run["MODEL_DIR"]) == best
  predictions = f"{bucket}/eval/0/predictions.jsonl"
  found = compare(predictions, predictions)
  assert found["num_questions"] == len(tiny_world.questions())
  assert found["metrics"]["exact_match"]["difference"] == 0


def test_answers_are_found_once(questions, run, object_store):
  def rows():
    answers = RunAnswers(
      run["MODEL_DIR"], questions, agreement=Agreement("answers")
    )
    return answers.of(questions.corpus)

  rows()
  made = object_store.names("commands/run/answers/")
  with object_store.counted() as requests:
    rows()
  assert not [line for line in requests if line.startswith("POST")]
  assert object_store.names("commands/run/answers/") == made


def test_generations_are_listed_verified_and_pruned(object_store, world):
  model_dir = object_store.path("commands/pruned")
  for step in (0, 500, 1000):
    publish_one(f"{model_dir}/generations", world.corpus, step)
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    store.save(1000, {"loop": {"generation": np.int64(500)}})
  (name,) = [
    name
    for name in object_store.names("commands/pruned/generations/00001000")
    if "embeddings-00001" in name and name.endswith(".npy")
  ]
  content = object_store.read(name)
  object_store.write(name, content[:-1] + bytes([content[-1] ^ 1]))
  with open_run(model_dir, None) as (store, uses):
    assert not any(one.problem for one in inspect(store, uses))
    found = inspect(store, uses, checksums=True)
    assert [one.checkpoints for one in found] == [[], [1000], []]
    assert [bool(one.problem) for one in found] == [False, False, True]
    assert name in found[2].problem
    store.remove(store.prunable(keep=1, pinned=uses.pinned()))
    assert store.steps() == [500, 1000]


def test_weights_go_in_and_out(object_store, tmp_path):
  home = models.GOLDEN / "hf_bert" / "masked_lm"
  model_dir = object_store.path("commands/imported")
  models.import_weights("hf_bert", home, model_dir, parts=["reader"])
  # What an import leaves on a disk may be copied to a bucket, too.
  run = tmp_path / "run"
  models.import_weights("hf_bert", home, run, parts=["reader"])
  upload_directory(run, object_store.path("commands/copied"))
  files = []
  for number, source in enumerate(("imported", "copied")):
    models.export(
      object_store.path(f"commands/{source}"),
      object_store.path(f"commands/exported/{number}"),
      *models.load(run)[:2],
      to="hf_bert",
    )
    folder = f"commands/exported/{number}/"
    names = object_store.names(folder)
    files.append({n.removeprefix(folder): object_store.read(n) for n in names})
  assert files[0] == files[1]
  assert files[0]["vocab.txt"] == (home / "vocab.txt").read_bytes()
  written = safetensors.numpy.load(files[0]["model.safetensors"])
  models.assert_same_bits(written, models.tensors(home))
