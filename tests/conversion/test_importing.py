"""An imported MODEL_DIR serves every command; a failed one leaves nothing."""

import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks.runs.jobs import Macro
from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.conversion.errors import ConversionError
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation import run
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.files.whole.whole_directory import TargetError
from realm_jax.generations.building import run as building
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from tests import tiny_world
from tests.conversion.hugging_face import bert_files as files
from tests.conversion.imported import import_weights
from tests.integration.commands import call

_LENGTHS = {
  "QUERY_LENGTH": tiny_world.QUERY_LENGTH,
  "BLOCK_LENGTH": tiny_world.BLOCK_LENGTH,
}
_TRAINING = {
  **_LENGTHS,
  "TASK": "inverse_cloze",
  "BATCH_SIZE": 8,
  "WARMUP_STEPS": 1,
  # Checkpoint 0 alone.
  "NUM_STEPS": 0,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  """Weights over the tiny world's vocabulary, with all parts."""
  folder = tmp_path_factory.mktemp("imported")
  files.write(folder / "bert", files.tensors(prefix="bert.", head=True))
  import_weights(
    "hf_bert", str(folder / "bert"), folder / "run", pooling="mean"
  )
  return folder / "run"


@pytest.fixture
def indexed(model_dir, world):
  """The MODEL_DIR with its generation 0."""
  published = call(
    building.build_index,
    _files(model_dir, "build_index"),
    MODEL_DIR=model_dir,
    CORPUS_DIR=world.corpus_dir,
    QUERY_LENGTH=tiny_world.QUERY_LENGTH,
    INDEX=Macro("EXACT"),
    **{"sidecar.SidecarConfig.once": True},
  )
  assert published == [0]
  return model_dir


def _files(model_dir, recipe):
  return [str(model_dir / "model.gin"), f"gin/runs/{recipe}.gin"]


@pytest.mark.slow
def test_it_is_indexed_searched_and_read_with(indexed, world, tmp_path):
  settings = {
    **_LENGTHS,
    "MODEL_DIR": indexed,
    "CORPUS_DIR": world.corpus_dir,
    "QUESTIONS": world.question_file,
    "BATCH_SIZE": 8,
  }
  for recipe in ("eval_retrieval", "eval"):
    more = {"JOINT_LENGTH": tiny_world.JOINT_LENGTH} if recipe == "eval" else {}
    metrics = call(
      run.evaluate,
      _files(indexed, recipe),
      OUTPUT_DIR=tmp_path / recipe,
      **settings,
      **more,
    )
    assert (metrics["checkpoint"], metrics["generation"]) == (0, 0)
    # Twenty of its 26 blocks are found.
    assert 0 < metrics["recall_at_20"] <= 1


@pytest.mark.slow
def test_training_starts_from_it(model_dir, world, tmp_path):
  config = call(
    TrainConfig,
    _files(model_dir, "inverse_cloze"),
    MODEL_DIR=tmp_path / "ict",
    CORPUS_DIR=world.corpus_dir,
    INITIAL_CHECKPOINT=model_dir,
    **_TRAINING,
  )
  trainer.train(config)
  stores = [CheckpointStore(path) for path in (model_dir, tmp_path / "ict")]
  first = [s.restore(0, items=("retriever",))["retriever"] for s in stores]
  jax.tree.map(np.testing.assert_array_equal, *first)


def test_a_corpus_of_another_vocabulary_is_refused(model_dir, world, tmp_path):
  pieces = tiny_world.pieces()
  pieces[10], pieces[11] = pieces[11], pieces[10]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
  build_corpus(
    [str(world.directory / "text.jsonl")],
    tmp_path / "corpus",
    vocab=str(tmp_path / "vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH,
  )
  with pytest.raises(CheckpointError, match="another vocabulary"):
    call(
      building.build_index,
      _files(model_dir, "build_index"),
      MODEL_DIR=model_dir,
      CORPUS_DIR=tmp_path / "corpus",
      **{"sidecar.SidecarConfig.once": True},
    )


def test_a_directory_with_anything_in_it_is_refused(model_dir, tmp_path):
  bert = str(model_dir.parent / "bert")
  with pytest.raises(ConversionError, match="has checkpoints already"):
    import_weights("hf_bert", bert, model_dir)
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(ConversionError, match=r"notes\.txt"):
    import_weights("hf_bert", bert, tmp_path)
  assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"output_dir": "/"}, "mount point.*name a new directory in it"),
    ({"corpus_dir": "run"}, "one directory, or one is in the other"),
    ({"corpus_dir": "run/corpus"}, "one directory, or one is in the other"),
    (
      {"output_dir": "corpus/run", "corpus_dir": "corpus"},
      "one directory, or one is in the other",
    ),
    ({"corpus_dir": "old"}, "holds a corpus already; .* or remove it first$"),
    ({"corpus_dir": "new", "block_length": 4}, "--block_length=4 is too short"),
    (
      {"block_records": "a.npy", "block_titles": "b.tfr"},
      "--block_records, --block_titles without --corpus_dir",
    ),
    ({"block_length": 288}, "--block_length without --corpus_dir"),
    ({"index": "exact"}, "--index without --corpus_dir"),
    (
      {"block_input": ".", "parts": ["reader"]},
      r"--block_input=\. is for a retriever",
    ),
  ],
)
def test_what_cannot_go_together_is_refused_before_anything_is_read(
  tmp_path, options, said
):
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "corpus.json").write_text("{}")
  # A directory in which there is nothing to read.
  (tmp_path / "bert").mkdir()
  options = {"output_dir": "run"} | options
  for name in ("output_dir", "corpus_dir"):
    if name in options:
      options[name] = tmp_path / options[name]
  with pytest.raises((ConversionError, TargetError), match=said):
    import_weights("hf_bert", str(tmp_path / "bert"), **options)
  assert {path.name for path in tmp_path.iterdir()} == {"old", "bert"}


def test_a_write_that_fails_leaves_nothing(model_dir, tmp_path, monkeypatch):
  def fail(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(CheckpointStore, "save", fail)
  bert = str(model_dir.parent / "bert")
  with pytest.raises(DiskFullError, match=r"disk of .* is full"):
    import_weights("hf_bert", bert, tmp_path / "run", parts=["retriever"])
  assert not list(tmp_path.iterdir())


_STUCK = """
import sys, time
from realm_jax.checkpoints.store import CheckpointStore
from tests.conversion.imported import import_weights

def stick(self, step, items):
  print("writing", flush=True)
  time.sleep(600)
CheckpointStore.save = stick
import_weights("hf_bert", sys.argv[1], sys.argv[2], parts=["retriever"])
"""


@pytest.mark.slow
def test_a_killed_import_leaves_no_model_and_is_cleared_away(
  model_dir, tmp_path, command_environment
):
  bert, target = str(model_dir.parent / "bert"), tmp_path / "run"
  child = subprocess.Popen(
    [sys.executable, "-c", _STUCK, bert, str(target)],
    env=command_environment,
    stdout=subprocess.PIPE,
  )
  try:
    assert child.stdout.readline() == b"writing\n"
    with pytest.raises(TargetError, match="another process"):
      import_weights("hf_bert", bert, target, parts=["retriever"])
  finally:
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
  assert not target.exists()
  import_weights("hf_bert", bert, target, parts=["retriever"])
  assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_the_command_takes_flags_and_gin_and_prints_what_it_did(
  model_dir, tmp_path, project_dir, command_environment
):
  recipe = tmp_path / "towers.gin"
  recipe.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.conversion import bert_models\n"
    'bert_models.TowerOptions.pooling = "mean"\n'
  )
  done = subprocess.run(
    [
      *(sys.executable, "-m", "realm_jax.import_weights", "--from=hf_bert"),
      f"--input={model_dir.parent / 'bert'}",
      f"--output_dir={tmp_path / 'run'}",
      *(f"--gin_file={recipe}", "--parts=retriever"),
    ],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 0, done.stderr
  assert (
    "retriever/tower/encoder/layer_1/up/kernel [8, 12] <- "
    "bert.encoder.layer.1.intermediate.dense.weight"
  ) in done.stdout
  assert "pooling 'mean' does not use the pooler" in done.stdout
