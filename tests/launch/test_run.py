"""A whole run in a bucket by the launcher: two processes, an index, figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runs.object_store import ObjectStore
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world

pytestmark = pytest.mark.slow

_MODEL = "tests/integration/tiny.gin"


def test_one_command_trains_on_two_processes_and_evaluates(
  tmp_path: Path,
  project_dir: Path,
  object_store: ObjectStore,
  command_environment: dict[str, str],
):
  world = tiny_world.build(tmp_path)
  run = object_store.path("launched")
  done = subprocess.run(
    [
      *(sys.executable, "-m", "launch.xm_launch"),
      f"--model_dir={run}",
      f"--corpus_dir={world.corpus_dir}",
      "--processes=2",
      "--gin_file=gin/runs/pretrain.gin",
      f"--gin_file={_MODEL}",
      "--gin.NUM_STEPS=6",
      "--gin.BATCH_SIZE=4",
      "--gin.NUM_CANDIDATES=3",
      "--gin.SAVE_EVERY_STEPS=2",
      "--gin.LAG_STEPS=2",
      "--gin.WAIT_FOR_GENERATIONS=True",
      "--builder_gin_file=gin/runs/build_index.gin",
      f"--builder_gin_file={_MODEL}",
      "--builder.gin.INDEX=%EXACT",
      "--builder.gin.MODE='every'",
      "--evaluator_gin_file=gin/runs/eval_masked.gin",
      f"--evaluator_gin_file={_MODEL}",
      f"--evaluator.gin.OUTPUT_DIR='{run}/eval'",
      "--evaluator.gin.NUM_BATCHES=1",
      "--evaluator.gin.BATCH_SIZE=4",
      "--evaluator.gin.NUM_CANDIDATES=3",
    ],
    cwd=project_dir,
    env={
      **command_environment,
      **object_store.environment,
      "HOME": str(tmp_path),
    },
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  for process in ("trainer-0", "trainer-1", "evaluator"):
    assert f"[{process}] ended with exit code 0\n" in done.stdout
  rows = read_rows(run)
  # The index of checkpoint 2 is used from step 4 on: it was made meanwhile.
  assert {row["staleness_steps"] for row in rows} == {0.0, 1.0, 2.0, 3.0}
  manifest = "launched/generations/00000002/manifest.json"
  assert manifest in object_store.names("launched/generations/")
  metrics = json.loads(object_store.read("launched/eval/metrics.json"))
  assert 0.0 <= metrics["masked_accuracy"] <= 1.0
