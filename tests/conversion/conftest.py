"""A tiny world, for the commands that an imported MODEL_DIR is given to."""

import pytest

from tests import tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> tiny_world.World:
  return tiny_world.build(tmp_path_factory.mktemp("world"))
