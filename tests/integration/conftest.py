"""The commands over a tiny world."""

import pytest

from tests.integration.commands import Commands


@pytest.fixture(scope="session")
def commands(world) -> Commands:
  return Commands(world)
