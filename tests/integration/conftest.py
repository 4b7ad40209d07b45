"""A tiny world, and the commands over it."""

import pytest

from tests import tiny_world
from tests.integration.commands import Commands


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> tiny_world.World:
  return tiny_world.build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def commands(world) -> Commands:
  return Commands(world)
