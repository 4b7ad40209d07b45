"""What lies in a folder of generations, as people are told."""

import json
import sys

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.inspection import open_run
from realm_jax.generations.store import GenerationStore
from tests.generations.conftest import files_of, flip, publish_one


@pytest.fixture
def model_dir(tmp_path, corpus):
  """Five generations, of which checkpoint 8 uses 4."""
  for step in (0, 4, 8, 12, 16):
    publish_one(tmp_path / "generations", corpus, step)
  _save(tmp_path, 8, generation=4)
  return tmp_path


def _save(model_dir, step, *, generation, lag_steps=0):
  store = CheckpointStore(model_dir)
  loop = {"generation": np.int64(generation), "lag_steps": np.int64(lag_steps)}
  store.save(step, {"loop": loop})
  store.close()


def test_what_is_needed_is_not_pruned(model_dir):
  def prunable(keep):
    with open_run(model_dir, None) as (store, uses):
      return store.prunable(keep=keep, pinned=uses.pinned())

  assert [prunable(keep) for keep in (2, 4, 1)] == [[0, 8], [0], [0, 8, 12]]
  # A run that waits may go on from any of its checkpoints.
  _save(model_dir, 12, generation=8, lag_steps=4)
  assert prunable(1) == [0]


@pytest.mark.slow
def test_the_command(model_dir, tmp_path, command_server):
  generations_dir = model_dir / "generations"

  def run(*arguments):
    command = [sys.executable, "-m", "realm_jax.generations", *arguments]
    return command_server.run([*command, f"--model_dir={model_dir}"])

  # What is being built is not a generation yet.
  (generations_dir / "00000020").mkdir()
  flip(next(files_of(generations_dir, 12).glob("emb*.npy")))
  verified = run("verify", f"--json={tmp_path}/found.json")
  assert verified.returncode == 1, verified.stderr
  assert "1 of 5 cannot be used: [12]" in verified.stdout
  found = json.loads((tmp_path / "found.json").read_text())
  assert [one["step"] for one in found] == [0, 4, 8, 12, 16]
  assert [one["step"] for one in found if one["problem"]] == [12]
  assert [one["step"] for one in found if one["checkpoints"] == [8]] == [4]
  assert {one["manifest"]["num_blocks"] for one in found} == {150}
  pruned = run("prune", "--keep=1")
  assert pruned.returncode == 0, pruned.stderr
  assert "removed 0, 8, 12" in pruned.stdout
  assert GenerationStore(generations_dir).steps() == [4, 16]
