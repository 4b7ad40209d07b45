"""REALM pre-training makes a better retriever of that of inverse cloze."""

import json
import sys

import pytest

pytestmark = pytest.mark.slow


def test_pretraining_finds_more_than_inverse_cloze_and_reads_it(
  command_server, command_environment, tmp_path
):
  # Without any optimization, hundreds of steps are slow.
  level = "--xla_backend_optimization_level"
  flags = command_environment["XLA_FLAGS"].replace(f"{level}=0", f"{level}=1")
  environment = {**command_environment, "XLA_FLAGS": flags}
  module = "tests.experiments.realm_learns_child"
  done = command_server.run(
    [sys.executable, "-m", module, str(tmp_path)],
    env=environment,
    timeout=3000.0,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  figures = json.loads(done.stdout.splitlines()[-1])
  inverse_cloze, realm = figures["recalls"]
  assert realm >= inverse_cloze + 0.1
  masked = figures["masked"]
  assert masked["masked_accuracy"] >= masked["masked_accuracy_null"] + 0.05
