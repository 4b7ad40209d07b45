"""What lies in a folder of generations, as people are told."""

import json
import sys

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.inspection import inspect, open_run, table
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
  with open_run(model_dir, None) as opened:
    found = {one.step: one for one in inspect(*opened)}
  # What is being built is not a generation yet.
  assert list(found) == [0, 4, 8, 12, 16]
  assert found[4].manifest.num_blocks == 150
  assert (found[4].checkpoints, found[4].problem) == ([8], "")
  assert "is not a manifest" in found[16].problem
  lines = table(list(found.values())).splitlines()
  assert lines[0].split()[:4] == ["step", "blocks", "corpus", "index"]
  assert lines[2].split()[:3] == ["4", "150", "v1"]
  assert lines[-1].startswith("16: ")


def test_what_is_needed_is_not_pruned(model_dir):
  def prunable(keep):
    with open_run(model_dir, None) as (store, uses):
      return store.prunable(keep=keep, pinned=uses.pinned())

  assert [prunable(keep) for keep in (2, 4, 1)] == [[0, 8], [0], [0, 8, 12]]
  # A run that waits may go on from any of its checkpoints.
  _save(model_dir, 12, generation=8, lag_steps=4)
  assert prunable(1) == [0]


def test_a_run_must_be_known_and_have_checkpoints(tmp_path, corpus):
  for given, message in (
    ((None, None), "give --model_dir"),
    ((tmp_path, None), "there is no folder"),
  ):
    with pytest.raises(GenerationError, match=message), open_run(*given):
      pass
  publish_one(tmp_path / "generations", corpus, 0)
  with open_run(None, tmp_path / "generations") as (store, uses):
    assert uses is None
    assert [one.step for one in inspect(store, uses)] == [0]
  with (
    open_run(tmp_path, None) as (store, uses),
    pytest.raises(UnknownNeedsError, match="has no checkpoint"),
  ):
    uses.pinned()


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
