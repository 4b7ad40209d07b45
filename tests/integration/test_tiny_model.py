"""The gin file of the tiny world's model is that model."""

from realm_jax import configuration
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from tests import tiny_world
from tests.integration.commands import MODEL_FILE


def test_commands_have_the_model_of_the_tiny_world():
  with configuration.parsed([MODEL_FILE]):
    assert configuration.configured(Retriever)() == tiny_world.RETRIEVER
    assert configuration.configured(Reader)() == tiny_world.READER
