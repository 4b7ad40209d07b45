"""One tiny corpus for all tests of tasks, and a registry that stays clean."""

from collections.abc import Iterator

import pytest
import seqio

from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.examples import find_task
from tests.inputs import tiny_corpus


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TaskContext:
  """Four blocks and three questions."""
  return tiny_corpus.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def new_tasks() -> Iterator[None]:
  """The test adds tasks, which nobody else is to see."""
  find_task("open_qa")  # Adds those of tasks/, which stay.
  before = set(seqio.TaskRegistry.names())
  yield
  for name in set(seqio.TaskRegistry.names()) - before:
    seqio.TaskRegistry.remove(name)
