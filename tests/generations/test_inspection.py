"""What lies in a folder of generations, as people are told."""

import json
import sys

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.inspection import RunGenerations, table
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.retention import UnknownNeedsError
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


def test_each_generation_is_described(model_dir, corpus):
  (model_dir / "generations" / "00000020").mkdir()
  (model_dir / "generations" / "00000016" / "manifest.json").write_text("{")
  found = {one.step: one for one in RunGenerations(model_dir, None).inspect()}
  # What is being built is not a generation yet.
  assert list(found) == [0, 4, 8, 12, 16]
  assert found[4].manifest.num_blocks == 150
  assert (found[4].checkpoints, found[4].problem) == ([8], "")
  assert "is not a manifest" in found[16].problem
  lines = table(list(found.values())).splitlines()
  assert lines[0].split()[:4] == ["step", "blocks", "corpus", "index"]
  assert lines[2].split()[:3] == ["4", "150", "v1"]
  assert lines[-1].startswith("16: ")


def test_what_is_needed_is_not_pruned(model_dir, tmp_path):
  generations = RunGenerations(model_dir, None)
  assert generations.prunable(keep=2) == [0, 8]
  assert generations.prunable(keep=4) == [0]
  assert generations.prunable(keep=1) == [0, 8, 12]
  # A run that waits may go on from any of its checkpoints.
  _save(model_dir, 12, generation=8, lag_steps=4)
  assert generations.prunable(keep=1) == [0]


def test_a_run_must_be_known_and_have_checkpoints(tmp_path, corpus):
  with pytest.raises(GenerationError, match="give --model_dir"):
    RunGenerations(None, None)
  with pytest.raises(GenerationError, match="there is no folder"):
    RunGenerations(tmp_path, None)
  publish_one(tmp_path / "generations", corpus, 0)
  generations = RunGenerations(None, tmp_path / "generations")
  assert [one.step for one in generations.inspect()] == [0]
  with pytest.raises(GenerationError, match="Give --model_dir, too"):
    generations.prunable(keep=1)
  with pytest.raises(UnknownNeedsError, match="has no checkpoint"):
    RunGenerations(tmp_path, None).prunable(keep=1)


@pytest.mark.slow
def test_the_command(model_dir, tmp_path, command_server):
  def run(*arguments):
    return command_server.run(
      [sys.executable, "-m", "realm_jax.generations", *arguments]
    )

  folder = f"--model_dir={model_dir}"
  flip(next(files_of(model_dir / "generations", 12).glob("emb*.npy")))
  verified = run("verify", folder, f"--json={tmp_path}/found.json")
  assert verified.returncode == 1, verified.stderr
  assert "1 of 5 cannot be used: [12]" in verified.stdout
  found = json.loads((tmp_path / "found.json").read_text())
  assert [one["step"] for one in found if one["problem"]] == [12]
  pruned = run("prune", folder, "--keep=1")
  assert pruned.returncode == 0, pruned.stderr
  assert "removed 0, 8, 12" in pruned.stdout
  assert GenerationStore(model_dir / "generations").steps() == [4, 16]
