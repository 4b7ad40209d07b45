"""What lies in a folder of generations, as people are told."""

import json
import sys

import pytest

from realm_jax.generations.store import GenerationStore
from tests.generations.builds import save
from tests.generations.conftest import files_of, flip, publish_one


@pytest.mark.slow
def test_the_command(tmp_path, corpus, command_server):
  generations_dir = tmp_path / "generations"
  for step in (0, 4, 8, 12, 16):
    publish_one(generations_dir, corpus, step)
  save(tmp_path, corpus, 8, generation=4)

  def run(*arguments):
    command = [sys.executable, "-m", "realm_jax.generations", *arguments]
    return command_server.run([*command, f"--model_dir={tmp_path}"])

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
  dry = run("prune", "--keep=1", "--dry_run")
  assert "would remove 0, 8, 12\n" in dry.stdout, dry.stderr
  # A run that waits may go on from any of its checkpoints.
  save(tmp_path, corpus, 12, generation=8, lag_steps=4)
  pruned = run("prune", "--keep=1")
  assert "removed 0\n" in pruned.stdout, pruned.stderr
  assert GenerationStore(generations_dir).steps() == [4, 8, 12, 16]
