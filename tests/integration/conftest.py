"""A tiny world, the gin file of its model, and the commands over them."""

import pytest

from tests import tiny_world
from tests.integration.commands import Commands


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> tiny_world.World:
  return tiny_world.build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory) -> str:
  """The gin file of the world's model and lengths."""
  path = tmp_path_factory.mktemp("gin") / "model.gin"
  lines = [
    "from __gin__ import dynamic_registration",
    "from realm_jax.models import bert",
    "from realm_jax.models import reader",
    "from realm_jax.models import retriever",
    'include "gin/models/tiny.gin"',
    *tiny_world.GIN_BINDINGS,
    "bert.BertConfig.init_stddev = 0.2",
  ]
  path.write_text("\n".join(lines) + "\n")
  return str(path)


@pytest.fixture(scope="session")
def commands(world, model_file) -> Commands:
  return Commands(world, model_file)
