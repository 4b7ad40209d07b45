"""A stage, reader, objective and index of the user's own work as ours do.

They are in one file, `own_parts.py`, which is copied out of the package: the
commands find it by the gin file that imports it, or by --modules.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

import realm_jax
from tests.processes.jobs import gin_command

pytestmark = pytest.mark.slow
_GIN = """
from __gin__ import dynamic_registration
import own_parts
include "tests/integration/tiny.gin"
STAGE = @own_parts.OwnStage()
READER = @own_parts.Writer()
OBJECTIVE = "best_block"
"""
_INDEX = """
from __gin__ import dynamic_registration
import own_parts
include "tests/integration/tiny.gin"
INDEX = "own"
"""


def test_they_train_evaluate_and_answer(
  world, tmp_path, project_dir, command_server, monkeypatch
):
  own, model_dir = tmp_path / "own", tmp_path / "run"
  own.mkdir()
  shutil.copy(Path(__file__).with_name("own_parts.py"), own)
  (own / "own.gin").write_text(_GIN)
  (own / "index.gin").write_text(_INDEX)
  for name in ("gin", "tests"):
    (own / name).symlink_to(project_dir / name)

  def run(module, *gin_files, flags=(), **bindings):
    command = gin_command(
      module, gin_files, f"--model_dir={model_dir}", *flags, **bindings
    )
    done = command_server.run(command, cwd=own)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

  recipe = "gin/runs/pretrain.gin", "own.gin"
  corpus = f"--corpus_dir={world.corpus_dir}"
  sizes = {"BATCH_SIZE": 8, "SAVE_EVERY_STEPS": 2, "LEARNING_RATE": 1e-3}
  run("train", *recipe, flags=[corpus], NUM_STEPS=0, **sizes)
  build = "gin/runs/build_index.gin"
  run("build_index", build, "index.gin", flags=["--once", corpus])
  run("train", *recipe, flags=[corpus], NUM_STEPS=2, **sizes)
  # The kind of index is that of the snapshot before.
  modules = "--modules=own_parts"
  run("build_index", flags=["--once", modules])
  manifest = model_dir / "snapshots/00000002/manifest.json"
  assert json.loads(manifest.read_text())["index_kind"] == "own"

  out = tmp_path / "out"
  masked = "gin/runs/eval_masked.gin"
  run("evaluate", masked, flags=[modules], NUM_BATCHES=2, OUTPUT_DIR=out)
  figures = json.loads((out / "metrics.json").read_text())
  assert figures["checkpoint"] == 2 and figures["loss"] > 0
  assert "block" in run("ask", flags=[modules, "where was Ada born?"])
  monkeypatch.syspath_prepend(own)
  loaded = realm_jax.load(model_dir, modules=["own_parts"])
  answered = loaded.ask("where was Ada born?")
  assert answered.text and answered.answers[0].block is None
  assert sum(answered.answers[0].shares) == pytest.approx(1)
  assert (
    "Writer" in repr(loaded.components.reader) and "own_parts" in sys.modules
  )
