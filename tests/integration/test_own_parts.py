"""A stage, reader, objective and index of the user's own work as ours do.

Those of docs/extending.md are one module, `my_parts.py`, and others are in
`own_parts.py`, which is copied out of the package: the commands find it by the
gin file that imports it, or by --modules.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import realm_jax
from harness.jobs import gin_command
from realm_jax import configuration
from realm_jax.indexes import protocol
from realm_jax.objectives import masked_lm
from realm_jax.training.config import TrainConfig
from tests.json_lines import read_lines
from tests.printed_commands import fenced

pytestmark = pytest.mark.slow
_GIN = """
from __gin__ import dynamic_registration
import own_parts
include "tests/integration/tiny.gin"
STAGE = @own_parts.OwnStage()
READER = @own_parts.Writer()
OBJECTIVE = "best_block"
BATCH_SIZE = 8
STEPS_AHEAD = 2
SAVE_EVERY_STEPS = 2
LEARNING_RATE = 1e-3
METRIC_WRITERS = ["tensorboard", @own_parts.Tracker()]
"""
_INDEX = """
from __gin__ import dynamic_registration
import own_parts
include "tests/integration/tiny.gin"
INDEX = "host"
"""
_BROKEN = """
from __gin__ import dynamic_registration
import own_parts
STAGE = @own_parts.BrokenStage()
INDEX = @own_parts.BrokenIndexConfig()
"""
_PAGE = "docs/extending.md"
_PARTS = "A stage", "An objective", "An index", "A reader"
_TRAIN = "gin/runs/pretrain.gin", "own.gin"
_BUILD = "gin/runs/build_index.gin", "index.gin"
_MODULES = "--modules=own_parts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project_dir):
  folder = tmp_path_factory.mktemp("own")
  for name in ("gin", "tests"):
    (folder / name).symlink_to(project_dir / name)
  shutil.copy(Path(__file__).with_name("own_parts.py"), folder)
  (folder / "my_parts.py").write_text(
    "\n".join(fenced(_PAGE, f"## {part}") for part in _PARTS)
  )
  (folder / "page.gin").write_text(fenced(_PAGE, "# Extending realm_jax"))
  (folder / "own.gin").write_text(_GIN)
  (folder / "index.gin").write_text(_INDEX)
  (folder / "broken.gin").write_text(_BROKEN)
  return folder


@pytest.fixture
def imported(folder, monkeypatch):
  """Has their modules imported; what they add is gone after the test."""
  monkeypatch.syspath_prepend(folder)
  monkeypatch.chdir(folder)
  for registry in (masked_lm, "OBJECTIVES"), (protocol, "CONFIGS"):
    monkeypatch.setattr(*registry, dict(getattr(*registry)))
  for name in ("my_parts", "own_parts"):
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture(scope="module")
def run(folder, command_server):
  """Runs a command, and returns what it prints, or its traceback."""

  def call(module, *gin_files, flags=(), code=0, **bindings):
    command = gin_command(
      module, gin_files, "--model_dir=run", *flags, **bindings
    )
    done = command_server.run(command, cwd=folder)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stderr if code else done.stdout

  return call


@pytest.fixture(scope="module")
def corpus(world, run):
  """The flag of a corpus; the run has been begun."""
  flag = f"--corpus_dir={world.corpus_dir}"
  run("train", *_TRAIN, flags=[flag], NUM_STEPS=0)
  return flag


def test_a_bug_in_them_is_read_in_few_frames_of_ours(corpus, run, project_dir):
  def frames(module, *gin_files, **settings):
    found = run(module, *gin_files, code=1, **settings)
    return re.findall(rf'File "{project_dir}/(realm_jax/.*?)"', found)

  once = [corpus, "--max_restarts=0"]
  train, build = ("train", *_TRAIN), ("build_index", *_BUILD)
  in_loss = frames(*train, "broken.gin", flags=once, NUM_STEPS=2)
  assert 3 < len(in_loss) <= 14, in_loss
  in_build = frames(*build, "broken.gin", flags=["--once", *once])
  assert 3 < len(in_build) <= 10, in_build


@pytest.mark.usefixtures("imported")
def test_the_gin_file_of_the_page_binds_its_parts():
  files = ["tests/integration/tiny.gin", "gin/runs/pretrain.gin", "page.gin"]
  names = 'MODEL_DIR = "run"', 'CORPUS_DIR = "c"', 'INITIAL_CHECKPOINT = "r"'
  config = configuration.parsed(TrainConfig, files, names).build(TrainConfig)
  assert config.stage.num_searches == 2
  assert config.stage.objective == "best_block"
  early = config.reader.for_vocabulary(vocab_size=9, separator_id=3)
  assert early.joint_length == 56
  query, block = np.array([[2, 5, 3]]), np.array([[[2, 3, 6, 7, 8, 3]]])
  given = query, block, np.zeros((1, 1), np.int32)
  (_, spans), params = early.init_with_output(jax.random.key(0), *given)
  plain = early.clone(decay=0.0).apply(params, *given)[1]
  drop = np.asarray(plain.logits) - np.asarray(spans.logits)
  late = early.decay * np.arange(6).reshape(1, 1, 6, 1)
  np.testing.assert_allclose(drop, np.broadcast_to(late, drop.shape), atol=1e-5)


@pytest.mark.usefixtures("imported")
def test_they_train_evaluate_and_answer(corpus, run, folder):
  run("build_index", *_BUILD, flags=["--once", corpus])
  run("train", *_TRAIN, flags=[corpus], NUM_STEPS=2)
  rows = read_lines(folder / "run/metrics.jsonl")
  tracked = "".join(f"{row['step']} {row['loss']}\n" for row in rows)
  assert (folder / "run/tracked.txt").read_text() == tracked
  assert list((folder / "run").glob("events.out.tfevents.*"))
  # The kind of index is that of the snapshot before.
  run("build_index", flags=["--once", _MODULES])
  manifest = folder / "run/snapshots/00000002/manifest.json"
  assert json.loads(manifest.read_text())["index_kind"] == "host"

  masked = "gin/runs/eval_masked.gin"
  run("evaluate", masked, flags=[_MODULES], NUM_BATCHES=2, OUTPUT_DIR="out")
  metrics = json.loads((folder / "out/metrics.json").read_text())
  assert metrics["checkpoint"] == 2 and metrics["loss"] > 0
  asked = [_MODULES, "where was Ada born?"]
  assert "block" in run("ask", flags=asked)
  # The reader says nothing of single blocks.
  assert re.search(r"\]  +–  +–  +–", run("explain", flags=asked))
  loaded = realm_jax.load(folder / "run", modules=["own_parts"])
  result = loaded.ask("where was Ada born?")
  assert result.answer and result.answers[0].block is None
  assert sum(result.answers[0].shares) == pytest.approx(1)
  assert "weight" not in result.json()["blocks"][0]
