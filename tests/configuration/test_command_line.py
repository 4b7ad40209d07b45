"""Flags of the command line, as gin reads them."""

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax import configuration
from realm_jax.configuration import ConfigurationError
from realm_jax.models.bert import BertConfig


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


def test_a_run_without_gin_files_is_configured_as_it_was(tmp_path):
  configuration.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  (tmp_path / "config.gin").write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import bert\n"
    "MODEL_DIR = 'elsewhere'\n"
    "HEADS = 3\n"
    "bert.BertConfig.hidden_size = 12\n"
    "bert.BertConfig.num_heads = %HEADS\n"
  )
  with flagsaver.flagsaver(
    model_dir=str(tmp_path), gin_file=[], gin_bindings=["HEADS = 2"]
  ):
    config = configuration.call(BertConfig, num_layers=1)
    with configuration.parsed_from_flags():
      assert f"MODEL_DIR = {str(tmp_path)!r}" in " ".join(
        configuration.text().replace("\\", "").split()
      )
  assert (config.hidden_size, config.num_heads, config.num_layers) == (12, 2, 1)


def test_a_command_without_a_run_asks_for_one():
  configuration.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  with (
    flagsaver.flagsaver(model_dir=None, gin_file=[], gin_bindings=[]),
    pytest.raises(ConfigurationError, match="give its directory as --model_d"),
  ):
    configuration.call(BertConfig, default_recipe="gin/runs/ask.gin")
