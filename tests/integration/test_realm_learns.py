"""REALM pre-training makes a better retriever of that of inverse cloze."""

import json
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures(
  command_server, command_environment, tmp_path_factory
) -> dict[str, float]:
  """What the stages reach in a small world, one after the other."""
  # The tests' flags of XLA compile fast and run slowly.
  environment = {**command_environment}
  del environment["XLA_FLAGS"]
  folder = tmp_path_factory.mktemp("learns")
  module = "tests.integration.realm_learns_child"
  done = command_server.run(
    [sys.executable, "-m", module, str(folder), "0"],
    env=environment,
    timeout=3000.0,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


def test_pretraining_finds_more_than_inverse_cloze(figures):
  assert figures["realm"] >= figures["inverse_cloze"] + 0.1


def test_random_blocks_fill_in_worse(figures):
  assert figures["EXACT"] >= figures["RANDOM"] + 0.05
