"""Whoever reads a traceback, reads few frames of this project."""

import re

import pytest

from tests.processes.jobs import gin_command

pytestmark = pytest.mark.slow
_PARTS = """
import dataclasses

from realm_jax.indexes import bm25, protocol
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class Broken(Pretraining):
  def loss(self, encoders, batch, inputs):
    raise ValueError("a bug")


@dataclasses.dataclass(frozen=True)
class BrokenIndex(bm25.Bm25Config):
  kind = "broken"

  def build(self, blocks, directory=None):
    raise ValueError("a bug")


protocol.CONFIGS["broken"] = ("broken_parts", "BrokenIndex")
"""
_GIN = """
from __gin__ import dynamic_registration
import broken_parts
include "tests/integration/tiny.gin"
"""


def test_frames_of_a_bug_in_a_loss_and_in_the_build_of_an_index(
  world, tmp_path, project_dir, command_server
):
  own = tmp_path / "own"
  own.mkdir()
  for name in ("gin", "tests"):
    (own / name).symlink_to(project_dir / name)
  (own / "broken_parts.py").write_text(_PARTS)
  (own / "broken.gin").write_text(f"{_GIN}STAGE = @broken_parts.Broken()")
  (own / "index.gin").write_text(f"{_GIN}INDEX = 'broken'")

  def frames(module, *gin_files, code=1, **bindings):
    flags = [f"--model_dir={tmp_path / 'run'}", "--max_restarts=0"]
    if module == "build_index":
      flags.append("--once")
    command = gin_command(
      module,
      gin_files,
      *flags,
      f"--corpus_dir={world.corpus_dir}",
      **bindings,
    )
    done = command_server.run(command, cwd=own)
    assert done.returncode == code, done.stderr[-3000:]
    return re.findall(rf'File "{project_dir}/(realm_jax/.*?)"', done.stderr)

  recipe, sizes = (
    "gin/runs/pretrain.gin",
    {"BATCH_SIZE": 8, "NUM_CANDIDATES": 1},
  )
  tiny = "tests/integration/tiny.gin"
  assert not frames("train", recipe, tiny, code=0, NUM_STEPS=0, **sizes)
  in_loss = frames("train", recipe, "broken.gin", NUM_STEPS=2, **sizes)
  assert 3 < len(in_loss) <= 14, in_loss
  in_build = frames("build_index", "gin/runs/build_index.gin", "index.gin")
  assert 3 < len(in_build) <= 11, in_build
