"""An imported MODEL_DIR serves every command; a failed one leaves nothing."""

import os
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from benchmarks.runs.jobs import Macro
from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation import evaluate as run
from realm_jax.generations import sidecar
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.storage.atomic import TargetError
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.weights import WeightsError
from realm_jax.weights.model import gin_model
from tests import tiny_world
from tests.integration.commands import FUNCTIONS, call
from tests.weights import hf_files as files
from tests.weights.imported import import_weights

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
  import_weights("hf_bert", folder / "bert", folder / "run", pooling="mean")
  return folder / "run"


@pytest.fixture
def indexed(model_dir, world):
  """The MODEL_DIR with its generation 0."""
  published = call(
    sidecar.build_index,
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
      sidecar.build_index,
      _files(model_dir, "build_index"),
      MODEL_DIR=model_dir,
      CORPUS_DIR=tmp_path / "corpus",
      **{"sidecar.SidecarConfig.once": True},
    )


# --- model.gin ------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
  """A model with nothing of the usual, and its file."""
  bert = BertConfig(
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
  retriever = Retriever(
    bert=bert,
    shared_towers=False,
    pooling="cls",
    projection_size=4,
    projection_norm_eps=1e-3,
    projection_dropout_rate=0.25,
    normalize=True,
    score_scale=12.5,
    query_prefix=(7, 8),
    token_types=False,
  )
  reader = Reader(
    bert=bert,
    joint_length=40,
    span_size=7,
    span_norm_eps=1e-2,
    max_answer_width=4,
  )
  text = gin_model(retriever, reader, source="somewhere")
  (tmp_path / "model.gin").write_text(text)
  return retriever, reader, str(tmp_path / "model.gin")


def test_its_gin_file_binds_the_very_same_modules(model):
  retriever, reader, file = model
  with configuration.parsed(OpenQa, [file]):
    assert configuration.configured(Retriever)() == retriever
    assert configuration.configured(Reader)() == reader


@pytest.mark.parametrize(
  ("recipe", "required"),
  [
    ("inverse_cloze", ()),
    ("pretrain", ()),
    ("open_qa", ("TRAIN_QUESTIONS",)),
    ("build_index", ()),
    ("eval", ("OUTPUT_DIR", "QUESTIONS")),
    ("ask", ()),
  ],
)
def test_its_gin_file_goes_with_recipes_and_its_macros_may_change(
  model, recipe, required
):
  names = ("MODEL_DIR", "CORPUS_DIR", *required)
  bindings = [f"{name} = ''" for name in names]
  bindings += ["DROPOUT_RATE = 0.0", "SCORE_SCALE = 3.0", "JOINT_LENGTH = 33"]
  recipes = [model[-1], f"gin/runs/{recipe}.gin"]
  with configuration.parsed(FUNCTIONS[recipe], recipes, bindings):
    retriever = configuration.configured(Retriever)()
    assert retriever.score_scale == 3.0
    assert retriever.bert.dropout_rate == 0.0
    assert configuration.configured(Reader)().joint_length == 33


class _Hub(types.ModuleType):
  """Stands for huggingface_hub, whose cache holds one model."""

  def __init__(self, folder):
    super().__init__("huggingface_hub")
    self.folder, self.fetched = folder, []

  def snapshot_download(self, name, *, allow_patterns):
    if name != "lovelace/bert":
      raise FileNotFoundError("it is in no cache, and the network is away")
    self.fetched.append(allow_patterns)
    return str(self.folder)


def test_a_model_on_the_hub_is_fetched_by_its_name(
  model_dir, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  # A module of None cannot be imported.
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(WeightsError, match=r"pip install 'realm_jax\[hub\]'"):
    import_weights("hf_bert", "lovelace/bert", "run", parts=["retriever"])
  hub = _Hub(model_dir.parent / "bert")
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  with pytest.raises(WeightsError, match="network is away"):
    import_weights("hf_bert", "lovelace/bort", "run", parts=["retriever"])
  import_weights("hf_bert", "lovelace/bert", "run", parts=["retriever"])
  assert "pytorch_model.bin" not in hub.fetched
  assert (
    "imported from bert (hf_bert)"
    in (tmp_path / "run" / "model.gin").read_text()
  )


# --- What goes wrong ------------------------------------------------------


def test_a_directory_with_anything_in_it_is_refused(model_dir, tmp_path):
  bert = model_dir.parent / "bert"
  with pytest.raises(WeightsError, match="checkpoints already"):
    import_weights("hf_bert", bert, model_dir)
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(WeightsError, match=r"notes\.txt"):
    import_weights("hf_bert", bert, tmp_path)
  assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
  ("options", "word"),
  [
    ({"output_dir": "/"}, "mount point"),
    ({"corpus_dir": "run"}, "one directory, or one is in the other"),
    ({"corpus_dir": "run/corpus"}, "one directory, or one is in the other"),
    (
      {"output_dir": "corpus/run", "corpus_dir": "corpus"},
      "one directory, or one is in the other",
    ),
    ({"corpus_dir": "old"}, "holds a corpus already"),
    ({"corpus_dir": "new", "block_length": 4}, "too short"),
    ({"block_records": "a", "index": "exact"}, "--block_records, --index with"),
    ({"block_input": ".", "parts": ["reader"]}, "is for a retriever"),
    ({"parts": ["writer"]}, "writer"),
    ({"pooling": "max"}, "--pooling=max"),
    ({"vocab": "vocab.txt"}, "--vocab"),
  ],
)
def test_choices_that_do_not_go_together_leave_nothing(
  model_dir, tmp_path, options, word
):
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "corpus.json").write_text("{}")
  options = {"output_dir": "run"} | options
  for name in ("output_dir", "corpus_dir"):
    if name in options:
      options[name] = tmp_path / options[name]
  if "block_input" in options:
    options["block_input"] = model_dir.parent / "bert"
  with pytest.raises((WeightsError, TargetError), match=word):
    import_weights("hf_bert", model_dir.parent / "bert", **options)
  assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_write_that_fails_leaves_nothing(model_dir, tmp_path, monkeypatch):
  def fail(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(CheckpointStore, "save", fail)
  bert = model_dir.parent / "bert"
  with pytest.raises(DiskFullError, match=r"disk of .* is full"):
    import_weights("hf_bert", bert, tmp_path / "run", parts=["retriever"])
  assert not list(tmp_path.iterdir())


_STUCK = """
import sys, time
from realm_jax.checkpoints.store import CheckpointStore
from tests.weights.imported import import_weights

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
    "from realm_jax.weights import formats\n"
    'formats.ImportConfig.pooling = "mean"\n'
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
  assert "pooling = 'mean'" in (tmp_path / "run" / "model.gin").read_text()
