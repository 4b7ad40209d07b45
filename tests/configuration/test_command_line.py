"""Flags of the command line, as gin reads them."""

import pytest

from realm_jax import configuration
from realm_jax.configuration import ConfigurationError


def test_gin_flags_are_expanded():
  assert configuration.expand_gin_flags(
    ["train", "--gin_file=a.gin", "--gin.MODEL_DIR='x=y'", "--gin.A.b=1"]
  ) == [
    "train",
    "--gin_file=a.gin",
    "--gin_bindings=MODEL_DIR = 'x=y'",
    "--gin_bindings=A.b = 1",
  ]


def test_a_gin_flag_without_value_is_refused():
  with pytest.raises(ConfigurationError, match=r"write --gin\.SEED=VALUE"):
    configuration.expand_gin_flags(["train", "--gin.SEED"])
