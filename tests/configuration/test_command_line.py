"""The shell of the commands: what lies between a command and its function."""

import re
import sys

import pytest

# Runs a command whose function raises.
_FAILING = """
import functools, importlib, runpy, sys

place, *sys.argv = sys.argv[1:]
module, name = place.split(":")
owner = importlib.import_module(module)

@functools.wraps(getattr(owner, name))
def fail(*arguments, **named):
  raise ZeroDivisionError

setattr(owner, name, fail)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_FILES = {
  "train": ["gin/runs/inverse_cloze.gin"],
  "evaluate": ["gin/runs/eval_retrieval.gin"],
  "build_index": ["gin/runs/build_index.gin"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("command", "place"),
  [
    ("train", "training.trainer:train"),
    ("evaluate", "evaluation.evaluate:evaluate"),
    ("build_index", "snapshots.index_builder:build_index"),
  ],
)
def test_at_most_three_frames_are_the_shell(
  command, place, command_server, tmp_path
):
  files = [*_FILES[command], "tests/integration/tiny.gin"]
  given = ["--gin.QUESTIONS=q.jsonl"] if command == "evaluate" else []
  done = command_server.run(
    [
      *(sys.executable, "-c", _FAILING),
      *(f"realm_jax.{place}", f"realm_jax.{command}"),
      *(f"--gin_file={file}" for file in files),
      *(f"--model_dir={tmp_path}", f"--corpus_dir={tmp_path}"),
      *given,
    ]
  )
  assert done.returncode == 1
  assert "ZeroDivisionError" in done.stderr
  frames = re.findall(r'^  File ".*/(realm_jax/.*)"', done.stderr, re.M)
  assert 1 <= len(frames) <= 3, done.stderr
  assert done.stderr.count("Traceback") == 1
